//! Consensus: openraft with our log on disk and our lock table as its state machine.
//! Nothing outside this folder names an openraft type.

pub mod types;
