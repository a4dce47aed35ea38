//! The cell of Lockkeeper: a node that keeps the lock table, durable and in agreement with the others.
//!
//! The way of a request, in the order of the modules:
//!
//! ```text
//! listen    gRPC and HTTP on one port
//! session   one stream for each client
//! api       one request type for every protocol: authorized here, it becomes a command or a read
//! propose   drains all that is queued into one log entry, stamped with cell time
//! raft      append, one fdatasync for the batch, replicate, commit
//! core      the lock table (crate lockkeeper-core): apply(entry) -> answers and effects
//! effects   replies to callers, grants to waiters, events to streams, session timers
//! ```

mod addresses;
pub mod api;
pub mod backup;
mod blocking;
mod budget;
pub mod callers;
mod cell_secret;
pub mod config;
pub mod console_seats;
pub mod data_dir;
mod effects;
pub mod expiry;
pub mod failure;
pub mod formation;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod hourly_stats;
pub mod leader_term;
mod leadership;
pub mod listen;
pub mod metrics;
pub mod node;
pub mod observe;
pub mod observers;
pub mod orphans;
mod private_files;
pub mod propose;
pub mod raft;
pub mod security;
pub mod session;
pub mod shared;
pub mod slow;
mod timers;
pub mod token_floor;
pub mod trace;
mod turns;
mod undelivered;
mod upgrade;
pub mod versions;

// Cells in one process, for unit tests: the file is shared with the tests of other programs, which know this crate by its name.
#[cfg(test)]
extern crate self as lockkeeper_server;
#[cfg(test)]
#[path = "../tests/support/cell.rs"]
mod test_cell;

pub use config::NodeConfig;
pub use listen::http::openapi_document;
pub use node::{Node, StartError};
pub use security::{KeyPair, Security};
