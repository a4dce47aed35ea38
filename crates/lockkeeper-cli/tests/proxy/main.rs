//! `lockkeeper proxy` as a real process before a real service.
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

mod passing;
mod stage;
mod stale;
#[allow(dead_code)]
#[path = "../cli/support.rs"]
mod support;
