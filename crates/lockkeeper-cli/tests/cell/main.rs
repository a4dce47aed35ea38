//! Bad days of a cell, with real processes: each test is a story of what can happen to three or five nodes, and
//! of what their clients notice.

#![allow(clippy::unwrap_used, reason = "a test that does not get what it asks for has failed")]

#[path = "../harness/mod.rs"]
mod harness;
#[cfg(feature = "simulation")]
#[path = "../../../lockkeeper-server/tests/support/cell.rs"]
mod in_process;

mod backup;
mod behind;
mod busy;
mod costly_frame;
mod cuts;
mod data_lost;
mod degraded;
mod disk;
mod distance;
mod failover;
mod formation;
mod health;
mod idle;
mod lease;
mod majority;
mod members;
mod misfits;
mod redirect;
mod rolling;
mod slow_disk;
mod stopped_leader;
mod upgrade;
