//! Nodes in this process: what they answer over HTTP and gRPC, what they write to the disk and find there again.
//!
//! Tests with a faulty disk need the feature `simulation`: releases do not contain that disk.
//!
//! One program for all of it: each would carry the whole server, and take as long to build.

#![allow(clippy::unwrap_used, reason = "a test that does not get what it asks for has failed")]

#[path = "../support/cell.rs"]
mod support;

mod backup;
mod busy;
mod cell;
mod direct;
mod disk_full;
#[cfg(feature = "simulation")]
mod disk_full_votes;
mod formats;
mod grpc;
mod http;
#[cfg(feature = "simulation")]
mod log;
mod metrics;
mod node;
mod observe;
mod quiet;
mod state_bound;
mod table_hash;
#[cfg(feature = "simulation")]
mod throttle;
