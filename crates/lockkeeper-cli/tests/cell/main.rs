//! Failures of a cell of three or five real processes, and their effects on clients.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "../harness/mod.rs"]
mod harness;
#[cfg(feature = "simulation")]
#[path = "../../../lockkeeper-server/tests/support/cell.rs"]
mod in_process;

mod backup;
mod busy;
mod catch_up;
mod costly_frame;
mod data_lost;
mod degraded;
mod disk;
mod failover;
mod formation;
mod health;
mod idle;
mod latency;
mod lease;
mod majority;
mod mass_expiry;
mod members;
mod misconfigured;
mod packet_loss;
mod partitions;
mod redirect;
mod rolling;
mod slow_disk;
mod stopped_leader;
mod upgrade;
