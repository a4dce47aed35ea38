//! The lock table in this process.
