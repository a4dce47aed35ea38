//! A lock table inside this process: a cell of one node on its own thread, without a network.
//!
//! # The recipe
//!
//! That of a cell: same client, lock table, log and snapshots. All keepers of this process with the same URL share one table,
//! so they exclude each other; its thread ends with the last of them. `embedded:` is in memory and lost with its thread;
//! `embedded:/path` is stored in a folder, and a command is answered when it is on disk.
//!
//! # The token
//!
//! One counter for the whole lock table, incremented by each grant. In a folder it keeps increasing across restarts; in memory
//! it restarts with a new table, like all data in this process that it could be compared with.
//!
//! # Whose clock decides
//!
//! The monotonic clock of this process, which includes suspends of the machine. The guard's own deadline uses the same clock
//! and ends first. While the process does not run, the time of a table in a folder does not advance.
//!
//! # What it does NOT promise
//!
//! Exclusion between processes: only one process at a time can open a folder. And protection from a stalled task: a pause of
//! the process stops table and holder together, but a task that does not run for longer than its lease is like a paused
//! holder of any engine, and its late write must be refused by the gate.
//!
//! ```text
//! task A   acquires (token 7) | blocks its thread for longer than the time to live ... | writes with 7: refused by the gate
//! table                       |   session of A expires, its lock is free               |
//! task B                      |             acquires (token 8), writes                 |
//! ```

mod node;

use std::path::PathBuf;
use std::sync::Arc;

use smol_str::SmolStr;

use self::node::NodeThread;
use crate::capabilities::{Capabilities, ClockAuthority};
use crate::engines::cell::transport::{Answers, Frames, Link, LinkError, Opening, Transport};
use crate::engines::cell::{self, Cell};
use crate::error::Error;
use crate::options::Options;

/// The capabilities of a cell, with the clock of this process.
pub(crate) static CAPABILITIES: Capabilities = Capabilities {
    engine: super::EMBEDDED.name,
    prefix: super::EMBEDDED.prefixes[0],
    clock: ClockAuthority::Server,
    ..cell::CAPABILITIES
};

/// Connects to the lock table of this process; starts it if necessary.
pub(crate) async fn open(path: Option<PathBuf>, options: &Options) -> Result<Cell, Error> {
    let node = node::shared(path, options.connect_timeout).await?;
    cell::start(&CAPABILITIES, Arc::new(Local { node }), options).await
}

/// The transport to a node in this process, which runs as long as there are connections to it.
struct Local {
    node: Arc<NodeThread>,
}

impl Transport for Local {
    fn open(&self, _attempt: usize, _leader: Option<SmolStr>) -> Opening {
        let node = Arc::clone(&self.node);
        Box::pin(async move {
            let (frames, answers) = node.open_stream().await.map_err(LinkError::new)?;
            Ok(Link {
                address: "embedded".into(),
                frames: Frames::Local(frames),
                answers: Answers::Local(answers),
            })
        })
    }

    fn addresses(&self) -> String {
        "the lock table of this process".to_owned()
    }
}
