//! The console in a browser: every view with data, live updates, and response times.
//!
//! `LOCKKEEPER_PICTURES=docs/images cargo test -p lockkeeper-cli --test console` updates the screenshots of the
//! documentation.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a failed unwrap fails the test")]

#[path = "../harness/mod.rs"]
mod harness;
#[cfg(feature = "simulation")]
#[path = "../../../lockkeeper-server/tests/support/cell.rs"]
mod in_process;

mod accessible;
mod browser;
mod differing_tables;
mod fixture;
mod live_updates;
mod scale;
mod token;
mod views;
