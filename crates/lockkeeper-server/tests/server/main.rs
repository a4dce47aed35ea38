//! Tests of nodes in this process: their answers over HTTP and gRPC, and what they write to disk and read back.
//!
//! Tests with a faulty disk need the feature `simulation`, because releases do not contain that disk.
//!
//! One test binary for all: each would link the whole server and take as long to build.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "../support/cell.rs"]
mod support;

mod access;
mod backup;
mod bounds;
mod busy;
mod cell;
mod direct;
#[cfg(feature = "simulation")]
mod disk_fails;
mod disk_full;
#[cfg(feature = "simulation")]
mod disk_full_releases;
#[cfg(feature = "simulation")]
mod disk_full_votes;
mod files;
mod formats;
mod grpc;
mod http;
#[cfg(feature = "simulation")]
mod log;
mod members;
mod metrics;
mod node;
mod observe;
mod observers;
mod quiet;
mod state_bound;
mod table_hash;
#[cfg(feature = "simulation")]
mod throttle;
