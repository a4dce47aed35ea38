//! The lab of Lockkeeper: faults, checkers, simulation and comparisons against real servers.

pub mod checkers;
pub mod compare;
pub mod lab;
mod lockkeeper_binary;
mod servers;
#[cfg(feature = "simulation")]
pub mod simulation;

pub use lockkeeper_binary::LockkeeperBinary;
