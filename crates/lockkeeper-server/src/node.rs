//! A node: starts all parts and connects them, in the order of the request path.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use lockkeeper_api::v1;
use lockkeeper_core::{LockTable, TableError};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use crate::api::Api;
use crate::config::NodeConfig;
use crate::data_dir::{DataDir, DataDirError};
use crate::failure::Failure;
use crate::formation::addresses;
use crate::formation::{CellMismatch, Formation};
use crate::leader::{leadership, timers, upgrade};
use crate::listen::{ListenError, Listener};
use crate::metrics::Metrics;
use crate::metrics::slow_acquires::SlowAcquireLog;
use crate::propose;
use crate::raft::log::{self, LogError, LogStore, MemoryDisk, RealDisk};
use crate::raft::network::{Dialer, PeerService};
use crate::raft::snapshot::{SnapshotReadError, SnapshotStore};
use crate::raft::types::{Member, SnapshotMeta};
use crate::raft::{Consensus, Start, terms};
use crate::security::{PortSecurity, SecurityError};
use crate::session::stream::ClientStream;
use crate::shared::Shared;

/// Capacity of the frame channels between an embedded client and the node.
const FRAMES_BUFFERED: usize = 64;
/// Start-up logs a warning when the node neither leads nor follows after this time, and keeps waiting.
const SLOW_START: Duration = Duration::from_secs(10);

/// Reason why a node did not start. Each message says what to do.
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
    /// The node's settings or data do not match its cell.
    #[error(transparent)]
    CellMismatch(#[from] CellMismatch),
    /// The node is not among the members.
    #[error(
        "node {node_id} is not among the members of --cell: add {node_id}=host:port, or correct --node-id"
    )]
    NotAMember {
        /// The node.
        node_id: u64,
    },
    /// The settings would allow access without authentication, or certificates cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The cell version of the data is too new.
    #[error(transparent)]
    CellVersion(#[from] TableError),
    /// The system's random source failed.
    #[error("failed to read random bytes from the system: {0}")]
    Random(lockkeeper_net::random::RandomError),
}

/// A running node. It stops when it is dropped.
pub struct Node {
    api: Api,
    consensus: Consensus,
    peers: PeerService,
    security: PortSecurity,
    ended: watch::Receiver<Option<String>>,
    tasks: JoinSet<()>,
    address: Option<SocketAddr>,
    _folder: FolderLock,
}

/// Releases the lock on the folder when the node is dropped.
struct FolderLock(Arc<DataDir>);

impl Drop for FolderLock {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// State that was read from the disk at start-up.
struct StoredState {
    log: LogStore,
    snapshots: SnapshotStore,
    snapshot_meta: Option<SnapshotMeta>,
    table: LockTable,
}

impl Node {
    /// Starts a node and waits until its cell has a leader.
    pub async fn start(config: NodeConfig) -> Result<Node, StartError> {
        let began = Instant::now();
        let node = Node::open(config).await?;
        node.wait_until_ready().await?;
        tracing::info!(
            through = node.consensus.status().applied,
            took_ms = began.elapsed().as_millis() as u64,
            "ready"
        );
        Ok(node)
    }

    /// Opens a node: reads the snapshot and the log, opens its ports and contacts the other members. Must be called
    /// on the runtime that will run the node; a current-thread runtime is the fastest.
    ///
    /// Boxed here and not by the callers: an async function is compiled again in every crate that awaits it, and this
    /// one contains the whole node.
    pub fn open(config: NodeConfig) -> BoxFuture<'static, Result<Node, StartError>> {
        Box::pin(Node::open_now(config))
    }

    async fn open_now(config: NodeConfig) -> Result<Node, StartError> {
        let home = Arc::new(match &config.data_dir {
            Some(path) => DataDir::open(path, config.node_id, config.security.insecure_files())?,
            None => DataDir::in_memory(config.node_id.unwrap_or(1))?,
        });
        let node_id = home.identity().node_id;
        let (needed, supported) = (home.identity().cell_version, config.versions.cell);
        if needed > supported {
            return Err(TableError::NewerVersion { needed, supported }.into());
        }
        if !config.members.is_empty() && !config.members.contains_key(&node_id) {
            return Err(StartError::NotAMember { node_id });
        }
        let mut security = PortSecurity::open(&config.security)?;
        let own_addresses = config.listen.iter().chain(&config.peer_listen);
        security.hosts.add_addresses(config.members.values().chain(own_addresses));
        // A port that is in use is detected before anything is written.
        let listener = bind(config.listen.as_deref()).await?;
        let peer_listener = bind(config.peer_listen.as_deref()).await?;
        let address = listener.as_ref().map(Listener::address);
        for address in listener.iter().map(Listener::address) {
            security.may_serve(address)?;
            security.may_serve_members(address)?;
        }
        for address in peer_listener.iter().map(Listener::address) {
            security.may_serve_members(address)?;
        }
        let own = addresses::own(
            config.members.get(&node_id).map(String::as_str),
            address,
            peer_listener.as_ref().map(Listener::address),
        );
        let configured = match config.members.is_empty() {
            true => BTreeMap::from([(node_id, own.peer.clone())]),
            false => config.members.clone(),
        };
        security.may_have_members(configured.len().max(home.identity().configured.len()))?;
        if home.identity().configured.is_empty() {
            let path = config.data_dir.clone().unwrap_or_default();
            home.remember_configured(&configured).map_err(|error| DataDirError::Io { path, error })?;
        }

        let StoredState { log, snapshots, snapshot_meta, mut table } = read_disk(&config, &home)?;
        table.support(supported)?;
        check_term(&config, &log)?;
        let mut nonce = [0; 8];
        lockkeeper_net::random::fill(&mut nonce).map_err(StartError::Random)?;
        let metrics = Metrics::new(log.sync_seconds());
        let slow = SlowAcquireLog::new(config.slow_acquire);
        let shared = Arc::new(Shared::new(u64::from_le_bytes(nonce), table, metrics, slow));
        let as_member = |(id, address): (&u64, &String)| {
            (*id, Member { client: address.clone(), peer: address.clone(), folder: 0 })
        };
        let (consensus, peers) = Consensus::start(Start {
            home: home.clone(),
            timing: config.timing,
            log: log.clone(),
            snapshots: snapshots.clone(),
            entries_behind_snapshot: config.entries_behind_snapshot,
            snapshot_meta,
            host: shared.clone(),
            counters: shared.metrics.members.clone(),
            own: own.clone(),
            configured: configured.iter().map(as_member).collect(),
            dialer: Dialer::new(security.dialing.clone()),
            versions: config.versions,
        })
        .await?;
        let authenticator = security.authenticator.clone();
        let api = Api::new(shared.clone(), consensus.clone(), home.clone(), snapshots.clone(), authenticator);
        let (end, ended) = watch::channel(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(propose::run(shared.clone(), consensus.clone(), log.clone()));
        tasks.spawn(timers::run(shared.clone(), consensus.clone(), log.clone()));
        tasks.spawn(upgrade::run(shared.clone(), consensus.clone(), home.clone()));
        tasks.spawn(take_snapshots(consensus.clone(), snapshots.clone()));
        let lead = {
            let (shared, consensus, end) = (shared.clone(), consensus.clone(), end.clone());
            let log = log.clone();
            async move {
                let why = leadership::follow(shared, consensus, log).await;
                end_with(&end, why);
            }
        };
        tasks.spawn(lead);
        if let Some(listener) = listener {
            tasks.spawn(listener.serve(api.clone(), peers.clone(), security.clone()));
        }
        if let Some(listener) = peer_listener {
            tasks.spawn(listener.serve_peers(peers.clone(), security.clone(), api.clone()));
        }
        let watch_folder = {
            let (home, consensus, end) = (home.clone(), consensus.clone(), end.clone());
            let (log, snapshots) = (log.clone(), snapshots.clone());
            async move {
                let why = home.wait_until_gone(|| log.has_files() && snapshots.has_files()).await;
                tracing::error!("{why}");
                end_with(&end, why);
                consensus.shutdown().await;
            }
        };
        tasks.spawn(watch_folder);
        let folder = FolderLock(home.clone());
        let formation = Formation { home, consensus: consensus.clone(), configured, own };
        // A mismatch that can be detected at once fails the start. One that only other members can report ends the node later.
        formation.start().await??;
        tasks.spawn(async move {
            let why = match formation.run().await {
                Ok(mismatch) => mismatch.to_string(),
                Err(failure) => failure.to_string(),
            };
            end_with(&end, why);
        });
        Ok(Node { api, consensus, peers, security, ended, tasks, address, _folder: folder })
    }

    async fn wait_until_ready(&self) -> Result<(), Failure> {
        let began = Instant::now();
        let mut warned = false;
        loop {
            if matches!(self.api.ready(), Ok(()) | Err(Failure::NotLeader { leader: Some(_) })) {
                return Ok(());
            }
            if let Some(why) = self.ended.borrow().clone() {
                return Err(Failure::Unavailable(why));
            }
            if !warned && began.elapsed() > SLOW_START {
                warned = true;
                tracing::warn!("still replaying the log, or waiting for a leader");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until this node knows the leader of its cell.
    pub async fn ready(&self) -> Result<(), Failure> {
        self.wait_until_ready().await
    }

    /// Returns the address on which it listens for clients, if it does.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the operations of this node.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Opens another port for clients.
    pub async fn listen(&mut self, address: &str) -> Result<SocketAddr, StartError> {
        let listener = Listener::bind(address).await?;
        let bound = listener.address();
        self.security.may_serve(bound)?;
        self.security.may_serve_members(bound)?;
        self.serve(listener);
        Ok(bound)
    }

    fn serve(&mut self, listener: Listener) {
        self.tasks.spawn(listener.serve(self.api.clone(), self.peers.clone(), self.security.clone()));
    }

    /// Opens a stream for a client in this process: the frames of the gRPC service's stream, without a network.
    /// Must be called on the node's own runtime; the channel ends may be used on any thread.
    pub fn open_stream(&mut self) -> (mpsc::Sender<v1::ClientFrame>, mpsc::Receiver<v1::ServerFrame>) {
        let (client, inbound) = mpsc::channel(FRAMES_BUFFERED);
        let (outbound, server) = mpsc::channel(FRAMES_BUFFERED);
        let inbound = ReceiverStream::new(inbound).map(Ok::<_, std::convert::Infallible>);
        let mut stream = ClientStream::new(inbound, self.api.clone());
        // Removes streams that have ended.
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

    /// Waits until the node cannot continue. Returns the reason.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "the node's tasks have ended".to_owned(),
        }
    }

    /// Stops the node. Everything that was acknowledged is already on disk. A leader first transfers its leadership,
    /// so that the cell does not have to wait for an election timeout.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        Box::pin(self.stop_now())
    }

    async fn stop_now(self) {
        if self.consensus.successor().is_some()
            && let Err(failure) = leadership::hand_over(self.api.shared(), &self.consensus).await
        {
            tracing::info!(%failure, "leadership transfer failed");
        }
        self.stop_without_transfer().await;
    }

    /// Stops the node. If it still leads, it announces its stop, so that the other members need not wait for their promises to
    /// end.
    pub(crate) async fn stop_without_transfer(mut self) {
        self.tasks.shutdown().await;
        self.api.shared().leader_term.end(None);
        self.consensus.send_goodbye().await;
        self.consensus.shutdown().await;
    }
}

/// Notes why the node ends. The first reason is the cause of the others.
fn end_with(end: &watch::Sender<Option<String>>, why: String) {
    end.send_if_modified(|first| {
        let is_first = first.is_none();
        first.get_or_insert(why);
        is_first
    });
}

async fn bind(address: Option<&str>) -> Result<Option<Listener>, ListenError> {
    match address {
        Some(address) => Listener::bind(address).await.map(Some),
        None => Ok(None),
    }
}

async fn take_snapshots(consensus: Consensus, snapshots: SnapshotStore) {
    loop {
        snapshots.due().await;
        if let Err(failure) = consensus.take_snapshot().await {
            tracing::error!(%failure, "failed to trigger a snapshot");
        }
    }
}

fn read_disk(config: &NodeConfig, home: &DataDir) -> Result<StoredState, StartError> {
    let (snapshots, snapshot) =
        SnapshotStore::open(home.snapshot().as_deref(), config.commands_between_snapshots)?;
    let (snapshot_meta, table) = match snapshot {
        Some((meta, table)) => (Some(meta), table),
        None => (None, LockTable::new()),
    };
    let through = snapshot_meta.as_ref().and_then(|meta| meta.last_log_id).map(|id| id.index);
    let disk: Arc<dyn log::Disk> = match (&config.log_disk, home.log()) {
        (Some(disk), _) => disk.clone(),
        (None, Some(path)) => {
            Arc::new(RealDisk::open(&path).map_err(|error| DataDirError::Io { path, error })?)
        }
        (None, None) => Arc::new(MemoryDisk::new()),
    };
    let (log, report) = log::open(disk, config.log.clone())?;
    if let Some(first) = report.first_index
        && first > through.map_or(0, |through| through + 1)
    {
        return Err(StartError::DataDir(DataDirError::Mismatch {
            path: config.data_dir.clone().unwrap_or_default(),
            what: format!(
                "the log begins at entry {first}, but the snapshot that covers the entries before it is \
                 missing or older. {}",
                log::REPAIR
            ),
        }));
    }
    log_stored_state(config, through, &table, &report);
    Ok(StoredState { log, snapshots, snapshot_meta, table })
}

/// Checks the term of the vote: an implausible one would end the process at its first election.
fn check_term(config: &NodeConfig, log: &LogStore) -> Result<(), StartError> {
    let path = config.data_dir.clone().unwrap_or_default();
    let vote = log.vote().map_err(|error| DataDirError::Io { path: path.clone(), error })?;
    terms::check_persisted(vote.as_ref()).map_err(|what| {
        let what = format!("{what}. {}", log::REPAIR);
        StartError::DataDir(DataDirError::Mismatch { path, what })
    })
}

fn log_stored_state(config: &NodeConfig, through: Option<u64>, table: &LockTable, report: &log::OpenReport) {
    let Some(folder) = &config.data_dir else {
        tracing::info!("all data is kept in memory and is lost when the process ends");
        return;
    };
    let counts = table.counts();
    match through {
        Some(through) => tracing::info!(
            folder = %folder.display(), through, locks = counts.locks, sessions = counts.sessions, "snapshot read"
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
            "the log ended in a write that was cut short: it was never acknowledged and was removed"
        );
    }
}
