//! What a client is told to do.

use serde::{Deserialize, Serialize};

use super::crowd::Crowd;

/// One step; each is answered by one event.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(crate) enum Step {
    /// Ask for the lock, and wait this long for it.
    Acquire { wait_ms: u64 },
    /// Read the resource.
    Read,
    /// Write what follows from what was read.
    Write,
    /// Give the lock back.
    Release,
    /// Read and write under the lock, again and again.
    Updates(Updates),
    /// Be many at once.
    Crowd(Crowd),
}

/// How the updates go on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Updates {
    /// For how long.
    pub(crate) for_ms: u64,
    /// Between the read and the write, on average.
    pub(crate) inside_ms: u64,
    /// Between two rounds, on average.
    pub(crate) outside_ms: u64,
    /// Where chance begins.
    pub(crate) seed: u64,
}
