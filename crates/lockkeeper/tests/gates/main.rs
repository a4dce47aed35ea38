//! The gates against real servers: 32 concurrent writers, the probes, and holders that are stopped for longer than their lease.
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

// The servers and child processes of the conformance suite; not all of them are needed here.
#[allow(dead_code)]
#[path = "../conformance/child.rs"]
mod child;
#[allow(dead_code)]
#[path = "../conformance/servers/mod.rs"]
mod servers;

mod examples;
mod file;
mod http;
mod object;
mod paused;
mod postgres;
mod redis;
mod s3;
mod sqlx;
mod writers;
