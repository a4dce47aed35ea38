//! The console in a browser: every view with data, live updates, and response times.
//!
//! `LOCKKEEPER_PICTURES=docs/images cargo test -p lockkeeper-cli --test console` renders the pictures of the
//! documentation again.

#![allow(
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test that does not get what it asks for has failed"
)]

#[path = "../harness/mod.rs"]
mod harness;

mod accessible;
mod browser;
mod many;
mod scene;
mod token;
mod views;
mod watching;
