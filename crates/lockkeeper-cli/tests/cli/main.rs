//! End-to-end tests of the binary: real processes, real signals, real terminals.
//!
//! A single test binary, because each one links the whole dependency tree.
#![allow(clippy::unwrap_used, missing_docs)]

mod bench;
mod election;
mod engines;
mod exclusion;
mod exit_codes;
mod group;
mod lost;
mod observe;
mod overload;
mod pid1;
mod serve;
mod signals;
#[path = "../harness/skip.rs"]
mod skip;
mod support;
mod terminal;
mod views;
