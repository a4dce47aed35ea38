//! Security tests of every entry point of a cell, with real processes and certificates created for each test.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a failed unwrap fails the test")]

mod access;
mod adversary;
mod before_auth;
mod certificates;
mod connection_limits;
mod connections;
mod disclosure;
mod disclosure_streams;
mod enable;
mod files;
mod fixture;
mod floods;
mod forged_members;
mod gate;
mod grpc;
#[path = "../harness/mod.rs"]
mod harness;
mod http2;
mod listening;
mod log_and_terminal;
mod memory_cap;
mod operators;
mod peers;
mod quota;
mod reflection;
mod slow;
mod state_bound;
mod tls;
mod unread_answers;
