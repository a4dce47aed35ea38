//! Limits on what callers may use: bytes, time, turns on the serving thread, threads for blocking work, lines in the log, and
//! pages of the console.

pub(crate) mod arrivals;
pub(crate) mod blocking;
pub(crate) mod budget;
pub mod console_seats;
pub(crate) mod deadlines;
pub(crate) mod log_throttle;
pub(crate) mod turns;
