//! The node's thread, shared by all keepers of a folder.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_api::v1::{ClientFrame, ServerFrame};
use lockkeeper_server::{Node, NodeConfig};
use tokio::sync::{Mutex, mpsc, oneshot, watch};

use crate::error::Error;

/// A bidirectional stream of frames to the node.
pub(super) type Stream = (mpsc::Sender<ClientFrame>, mpsc::Receiver<ServerFrame>);

/// A running node. Dropping it stops the node.
pub(super) struct NodeThread {
    opens: mpsc::Sender<oneshot::Sender<Stream>>,
    /// True once the thread has released the folder.
    ended: watch::Receiver<bool>,
}

/// A node that is in use or about to end.
struct Known {
    node: Weak<NodeThread>,
    ended: watch::Receiver<bool>,
}

/// The nodes of this process, by folder.
static NODES: Mutex<Option<HashMap<Option<PathBuf>, Known>>> = Mutex::const_new(None);

/// Returns the running node of a folder (or the one in memory), or starts it.
pub(super) async fn shared(path: Option<PathBuf>, limit: Duration) -> Result<Arc<NodeThread>, Error> {
    let path = path.as_deref().map(canonical).transpose()?;
    let mut nodes = NODES.lock().await;
    let nodes = nodes.get_or_insert_default();
    nodes.retain(|_, known| known.node.strong_count() > 0 || !*known.ended.borrow());
    if let Some(known) = nodes.get(&path) {
        if let Some(node) = known.node.upgrade()
            && !*node.ended.borrow()
        {
            return Ok(node);
        }
        // A node that is about to end must release the folder first.
        let mut ended = known.ended.clone();
        let waited = tokio::time::timeout(limit, ended.wait_for(|ended| *ended)).await;
        if waited.is_err() {
            return Err(Error::unavailable("the lock table of this folder is still being closed: try again"));
        }
    }
    let (node, started) = NodeThread::start(path.clone())?;
    let node = Arc::new(node);
    // Registered before it has started: even if this call is dropped, the node keeps the folder until it ends.
    nodes.insert(path, Known { node: Arc::downgrade(&node), ended: node.ended.clone() });
    match started.await {
        Ok(Ok(())) => Ok(node),
        Ok(Err(text)) => Err(Error::unavailable(text)),
        Err(_) => {
            Err(Error::Fatal("the thread of the lock table has panicked: see its message above".into()))
        }
    }
}

/// Receives the result of the start of a node.
type Started = oneshot::Receiver<Result<(), String>>;

/// The canonical path of a folder, which is created if necessary.
fn canonical(path: &Path) -> Result<PathBuf, Error> {
    std::fs::create_dir_all(path).and_then(|()| std::fs::canonicalize(path)).map_err(|error| {
        Error::unavailable(format!(
            "failed to open the folder {}: {error}; name a writable folder",
            path.display()
        ))
    })
}

impl NodeThread {
    fn start(path: Option<PathBuf>) -> Result<(NodeThread, Started), Error> {
        let (opens, requests) = mpsc::channel(16);
        let (started, start) = oneshot::channel();
        let (end, ended) = watch::channel(false);
        std::thread::Builder::new()
            .name("lockkeeper-node".to_owned())
            .spawn(move || {
                run(path, requests, started);
                end.send_replace(true);
            })
            .map_err(|error| {
                Error::unavailable(format!("failed to start the thread of the lock table: {error}"))
            })?;
        Ok((NodeThread { opens, ended }, start))
    }

    /// Opens a stream to the node.
    pub(super) async fn open_stream(&self) -> Result<Stream, &'static str> {
        const GONE: &str = "the lock table of this process has stopped";
        let (reply, answer) = oneshot::channel();
        self.opens.send(reply).await.map_err(|_| GONE)?;
        answer.await.map_err(|_| GONE)
    }
}

/// The body of the thread: runs the node until its last user is gone.
fn run(
    path: Option<PathBuf>,
    mut requests: mpsc::Receiver<oneshot::Sender<Stream>>,
    started: oneshot::Sender<Result<(), String>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = started.send(Err(format!("failed to create the runtime of the lock table: {error}")));
            return;
        }
    };
    runtime.block_on(async move {
        let config = path.map_or_else(NodeConfig::in_memory, NodeConfig::durable);
        let mut node = match Node::start(config).await {
            Ok(node) => node,
            Err(error) => {
                let _ = started.send(Err(error.to_string()));
                return;
            }
        };
        // If the caller is gone, the channel of requests is closed and the loop ends at once.
        let _ = started.send(Ok(()));
        loop {
            tokio::select! {
                request = requests.recv() => match request {
                    Some(reply) => drop(reply.send(node.open_stream())),
                    None => break,
                },
                why = node.ended() => {
                    tracing::error!(%why, "the lock table of this process has stopped");
                    break;
                }
            }
        }
        node.stop().await;
    });
}
