//! Tests of single engines whose grants have their own leases.

mod postgres;
mod redis;
mod redlock;
