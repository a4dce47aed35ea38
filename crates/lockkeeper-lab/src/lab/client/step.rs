//! The steps of a client.

use serde::{Deserialize, Serialize};

use super::group::ClientGroup;

/// A step. One event answers it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(crate) enum Step {
    /// Request the lock, and wait this long for it.
    Acquire { wait_ms: u64 },
    /// Read the resource.
    Read,
    /// Write what follows from what was read.
    Write,
    /// Release the lock.
    Release,
    /// Read and write under the lock in a loop.
    Updates(Updates),
    /// Run a group of clients.
    ClientGroup(ClientGroup),
}

/// Settings of a loop of updates.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Updates {
    /// Duration of the loop.
    pub(crate) for_ms: u64,
    /// Mean time between read and write.
    pub(crate) inside_ms: u64,
    /// Mean time between two rounds.
    pub(crate) outside_ms: u64,
    /// Seed of the random times.
    pub(crate) seed: u64,
}
