//! The cell of Lockkeeper.
pub mod raft;
