//! The lock table inside this process: a cell of one node on a thread of its own, without a network.
//!
//! # The recipe
//!
//! That of a cell: the client is the same, and so are the lock table, its log and its snapshots. All keepers of this process
//! that name the same URL share one table, so they exclude each other; its thread ends with the last of them. `embedded:` is
//! in memory and gone with that; `embedded:/path` is kept in a folder, and an answer is given when it is on disk.
//!
//! # The token
//!
//! One counter for the whole lock table, raised by each grant. In a folder it rises over restarts; in memory it begins again
//! with a new table, and so does everything that it could be compared with in this process.
//!
//! # Whose clock decides
//!
//! The monotonic clock of this process, which also counts while the machine sleeps. The guard's own deadline is counted on
//! the same clock and ends first. While the process does not run, the time of a table in a folder stands still.
//!
//! # What it does NOT promise
//!
//! Anything to other processes: one of them at a time can use a folder, and another is refused. And what a paused process
//! does when it wakes: here table and holder are paused together, so a write that was on its way is not overtaken inside; but
//! a task that is kept from running for longer than its lease is like a paused holder anywhere.
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
use crate::engines::cell::transport::{Answers, Frames, Link, Opening, Refused, Transport};
use crate::engines::cell::{self, Cell};
use crate::error::Error;
use crate::options::Options;

/// Those of a cell, for one process.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    engine: "embedded",
    scheme: "embedded:",
    clock: ClockAuthority::Server,
    ..cell::CAPABILITIES
};

/// Connects to the lock table of this process; starts it if there is none.
pub(crate) async fn open(path: Option<PathBuf>, options: &Options) -> Result<Cell, Error> {
    let node = node::shared(path, options.connect_timeout).await?;
    cell::start(&CAPABILITIES, Arc::new(Local { node }), options).await
}

/// A node in this process. It lives as long as a connection to it.
struct Local {
    node: Arc<NodeThread>,
}

impl Transport for Local {
    fn open(&self, _attempt: usize, _leader: Option<SmolStr>) -> Opening {
        let node = Arc::clone(&self.node);
        Box::pin(async move {
            let (frames, answers) = node.open_stream().await.map_err(Refused::because)?;
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
