//! Limits on what callers may use: bytes, turns on the serving thread, threads for blocking work, and pages of the console.

pub(crate) mod blocking;
pub(crate) mod budget;
pub mod console_seats;
pub(crate) mod turns;
