//! The lab of Lockkeeper: benchmarks, faults and proofs against real servers.

pub mod bench;
pub mod checkers;
pub mod lab;
#[cfg(feature = "simulation")]
pub mod simulation;
