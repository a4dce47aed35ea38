//! The lock table inside this process: a cell of one node on a thread of its own, without a network.
//!
//! What it does NOT promise: anything to other processes. `embedded:` is in memory and gone with the last keeper that uses
//! it; `embedded:/path` is kept in a folder, which one process can use at a time. All keepers of this process that name the
//! same URL share one lock table, so they exclude each other. Sessions, deadlines, tokens and waits are those of a cell:
//! the client is the same, and so is the lock table.

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
