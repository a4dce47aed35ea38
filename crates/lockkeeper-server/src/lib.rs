//! A node of a Lockkeeper cell: it keeps the lock table durable and replicated.
//!
//! The path of a request through the modules:
//!
//! ```text
//! listen    gRPC and HTTP on one port
//! session   one stream for each client
//! api       one request type for every protocol: authorizes it and turns it into a command or a read
//! propose   drains the queue into one log entry, stamped with cell time
//! raft      append, one fdatasync for the batch, replicate, commit
//! core      the lock table (crate lockkeeper-core): apply(entry) -> answers and effects
//! effects   replies to callers, grants to waiters, events to streams, session timers
//! ```

pub mod api;
pub mod backup;
pub mod config;
pub mod data_dir;
pub mod effects;
pub mod failure;
pub mod formation;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod leader;
pub mod limits;
pub mod listen;
pub mod metrics;
pub mod node;
pub mod observe;
pub mod propose;
pub mod raft;
pub mod security;
pub mod session;
pub mod shared;
pub mod trace;

// Cells in one process, for unit tests. The file is shared with integration tests, which use this crate by its name.
#[cfg(test)]
extern crate self as lockkeeper_server;
#[cfg(test)]
#[path = "../tests/support/cell.rs"]
mod test_cell;

pub use config::NodeConfig;
pub use listen::http::openapi_document;
pub use node::{Node, StartError};
pub use security::{KeyPair, Security};
