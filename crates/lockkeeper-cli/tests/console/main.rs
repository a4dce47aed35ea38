//! The console in a real browser: every view with data, what happens while somebody watches, and how fast it is.
//!
//! `LOCKKEEPER_PICTURES=docs/images cargo test -p lockkeeper-cli --test console` makes the pictures of the
//! documentation anew.

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
