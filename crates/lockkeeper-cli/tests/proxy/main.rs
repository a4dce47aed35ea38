//! `lockkeeper proxy` as a real process in front of a real service.
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

mod fixture;
mod forwarding;
mod stale;
#[allow(dead_code)]
#[path = "../cli/support.rs"]
mod support;
