//! The binary as people and scripts meet it: real processes, real signals, real terminals.
//!
//! One test program, because each costs a link of the whole dependency tree.
#![allow(clippy::unwrap_used, missing_docs)]

mod bench;
mod election;
mod engines;
mod exit_codes;
mod group;
#[path = "../harness/lacking.rs"]
mod lacking;
mod lost;
mod observe;
mod overload;
mod process_one;
mod serve;
mod signals;
mod support;
mod terminal;
mod turns;
mod views;
