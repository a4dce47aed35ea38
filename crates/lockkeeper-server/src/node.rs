//! A node: everything put together in the order of the flow.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lockkeeper_core::LockTable;
use lockkeeper_proto::v1;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use crate::calls::Calls;
use crate::config::NodeConfig;
use crate::data_dir::{DataDir, DataDirError};
use crate::failure::Failure;
use crate::listen::{ListenError, Listener};
use crate::proposer::Proposer;
use crate::raft::Consensus;
use crate::raft::log::{self, LogError, MemoryDisk, RealDisk};
use crate::raft::snapshot::{SnapshotReadError, SnapshotStore};
use crate::session::stream::ClientStream;
use crate::shared::Shared;
use crate::{leadership, timers};

/// Frames between an embedded client and the node.
const FRAMES_BUFFERED: usize = 64;
/// How long a node may take until it leads or follows; after that start-up says so and goes on waiting.
const SLOW_START: Duration = Duration::from_secs(10);

/// Why a node did not start. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The log cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The snapshot cannot be used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotReadError),
    /// The address cannot be used.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Raft did not start.
    #[error(transparent)]
    Raft(#[from] Failure),
    /// More than one member was named.
    #[error(
        "a cell of {0} nodes is not supported by this version: leave out --cell, or name this node alone"
    )]
    Members(usize),
    /// The node is not among the members.
    #[error(
        "node {node_id} is not among the members of --cell: add {node_id}=host:port, or correct --node-id"
    )]
    NotAMember {
        /// The node.
        node_id: u64,
    },
    /// No random bytes.
    #[error("the system gives no random bytes: {0}")]
    Random(getrandom::Error),
}

/// A running node. It stops when it is dropped.
pub struct Node {
    calls: Calls,
    consensus: Consensus,
    ended: watch::Receiver<Option<String>>,
    tasks: JoinSet<()>,
    _data_dir: Option<DataDir>,
}

/// What start-up found, for people.
#[derive(Debug, Clone, Default)]
struct Found {
    snapshot_through: Option<u64>,
    locks: u64,
    sessions: u64,
}

impl Node {
    /// Starts a node: reads the snapshot and the log, takes part in the cell, and returns when it leads.
    /// Must be called on the runtime that is to carry it; a current-thread one is the fastest.
    pub async fn start(config: NodeConfig) -> Result<Node, StartError> {
        let began = Instant::now();
        let data_dir =
            config.data_dir.as_deref().map(|path| DataDir::open(path, config.node_id)).transpose()?;
        let node_id = data_dir
            .as_ref()
            .map_or_else(|| config.node_id.unwrap_or(1), |data_dir| data_dir.identity().node_id);
        let members = members_of(&config, node_id)?;
        let cell = data_dir
            .as_ref()
            .map_or_else(|| "in-memory".to_owned(), |data_dir| data_dir.identity().cell.clone());

        let (snapshots, snapshot) = SnapshotStore::open(
            data_dir.as_ref().map(DataDir::snapshot).as_deref(),
            config.commands_between_snapshots,
        )?;
        let (meta, table) = match snapshot {
            Some((meta, table)) => (Some(meta), table),
            None => (None, LockTable::new()),
        };
        let found = Found {
            snapshot_through: meta.as_ref().and_then(|meta| meta.last_log_id).map(|id| id.index),
            locks: table.counts().locks,
            sessions: table.counts().sessions,
        };
        let disk: Arc<dyn log::Disk> = match &data_dir {
            Some(data_dir) => {
                let path = data_dir.log();
                Arc::new(RealDisk::open(&path).map_err(|error| DataDirError::Io { path, error })?)
            }
            None => Arc::new(MemoryDisk::new()),
        };
        let (store, report) = log::open(disk, config.log.clone())?;
        if let Some(first) = report.first_index
            && first > found.snapshot_through.map_or(0, |through| through + 1)
        {
            return Err(StartError::DataDir(DataDirError::Strange {
                path: config.data_dir.clone().unwrap_or_default(),
                what: format!(
                    "the log begins at entry {first}, but the snapshot that covers what is before it is \
                     missing or older: put back a copy of the data folder from a backup; a member of a larger \
                     cell can also be emptied and added again"
                ),
            }));
        }
        say_what_was_found(&config, &found, &report);

        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(StartError::Random)?;
        let shared = Arc::new(Shared::new(u64::from_le_bytes(nonce), table));
        let consensus =
            Consensus::start(node_id, config.timing, store.clone(), snapshots.clone(), meta, shared.clone())
                .await?;
        consensus.form(&members).await?;
        if members.len() == 1 {
            consensus.stand().await?;
        }
        let calls = Calls::new(shared.clone(), consensus.clone(), node_id, cell);
        let (end, ended) = watch::channel(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(Proposer::run(shared.clone(), consensus.clone(), store.clone()));
        tasks.spawn(timers::run(shared.clone(), store));
        tasks.spawn({
            let consensus = consensus.clone();
            async move {
                loop {
                    snapshots.due().await;
                    if let Err(failure) = consensus.take_snapshot().await {
                        tracing::error!(%failure, "no snapshot was taken");
                    }
                }
            }
        });
        tasks.spawn({
            let (shared, consensus) = (shared.clone(), consensus.clone());
            async move {
                let why = leadership::follow(shared, consensus).await;
                end.send_replace(Some(why));
            }
        });
        let node = Node { calls, consensus, ended, tasks, _data_dir: data_dir };
        node.until_ready().await?;
        tracing::info!(
            node_id,
            through = node.consensus.status().applied,
            took_ms = began.elapsed().as_millis() as u64,
            "ready"
        );
        Ok(node)
    }

    async fn until_ready(&self) -> Result<(), Failure> {
        let began = Instant::now();
        let mut said = false;
        loop {
            if self.calls.ready().is_ok() {
                return Ok(());
            }
            if let Some(why) = self.ended.borrow().clone() {
                return Err(Failure::Unavailable(why));
            }
            if !said && began.elapsed() > SLOW_START {
                said = true;
                tracing::warn!("still replaying the log, or waiting for a leader");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The operations of this node.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Opens the port for clients.
    pub async fn listen(&mut self, address: &str) -> Result<std::net::SocketAddr, StartError> {
        let listener = Listener::bind(address).await?;
        let bound = listener.address();
        self.tasks.spawn(listener.serve(self.calls.clone()));
        Ok(bound)
    }

    /// The frames of a client in this process: what goes over the stream of the gRPC service, without a
    /// network. Must be called on the node's own runtime; the ends may go anywhere.
    pub fn open_stream(&mut self) -> (mpsc::Sender<v1::ClientFrame>, mpsc::Receiver<v1::ServerFrame>) {
        let (client, inbound) = mpsc::channel(FRAMES_BUFFERED);
        let (outbound, server) = mpsc::channel(FRAMES_BUFFERED);
        let inbound = ReceiverStream::new(inbound).map(Ok::<_, std::convert::Infallible>);
        let mut stream = ClientStream::new(inbound, self.calls.clone());
        // Streams that have ended.
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(async move {
            while let Some(frame) = stream.next().await {
                if outbound.send(frame).await.is_err() {
                    return;
                }
            }
        });
        (client, server)
    }

    /// Waits until the node can no longer go on, and says why.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "the node's tasks have ended".to_owned(),
        }
    }

    /// Stops the node. What was acknowledged is on the disk already.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
        self.consensus.shutdown().await;
    }
}

fn members_of(config: &NodeConfig, node_id: u64) -> Result<BTreeMap<u64, String>, StartError> {
    match config.members.len() {
        0 => Ok(BTreeMap::from([(node_id, config.address.clone())])),
        1 if config.members.contains_key(&node_id) => Ok(config.members.clone()),
        1 => Err(StartError::NotAMember { node_id }),
        count => Err(StartError::Members(count)),
    }
}

fn say_what_was_found(config: &NodeConfig, found: &Found, report: &log::OpenReport) {
    let Some(folder) = &config.data_dir else {
        tracing::info!("everything is kept in memory and gone with the process");
        return;
    };
    match found.snapshot_through {
        Some(through) => tracing::info!(
            folder = %folder.display(), through, locks = found.locks, sessions = found.sessions, "snapshot read"
        ),
        None => tracing::info!(folder = %folder.display(), "no snapshot yet"),
    }
    tracing::info!(
        entries = report.entries,
        first = report.first_index,
        last = report.last_index,
        bytes = report.bytes,
        took_ms = report.time.as_millis() as u64,
        "log read, replaying what the snapshot does not cover"
    );
    if report.bytes_cut > 0 {
        tracing::warn!(
            bytes = report.bytes_cut,
            "the log ended in a write that was cut short; nothing of it had been acknowledged, so it was removed"
        );
    }
}
