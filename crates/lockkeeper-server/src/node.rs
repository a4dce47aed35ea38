//! A node: everything put together in the order of the flow.

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
use crate::formation::{Formation, Misfit};
use crate::listen::{ListenError, Listener};
use crate::metrics::Metrics;
use crate::raft::log::{self, LogError, LogStore, MemoryDisk, RealDisk};
use crate::raft::network::{Dialer, PeerService};
use crate::raft::snapshot::{SnapshotReadError, SnapshotStore};
use crate::raft::types::{Member, SnapshotMeta};
use crate::raft::{Consensus, Start, terms};
use crate::security::{PortSecurity, SecurityError};
use crate::session::stream::ClientStream;
use crate::shared::Shared;
use crate::slow::Slow;
use crate::{addresses, leadership, propose, timers, upgrade};

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
    /// The node does not fit into its cell.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// The node is not among the members.
    #[error(
        "node {node_id} is not among the members of --cell: add {node_id}=host:port, or correct --node-id"
    )]
    NotAMember {
        /// The node.
        node_id: u64,
    },
    /// Others could come in without being asked, or certificates cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The data is that of a cell whose version is too new.
    #[error(transparent)]
    CellVersion(#[from] TableError),
    /// No random bytes.
    #[error("the system gives no random bytes: {0}")]
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

/// Gives the folder free when the node is gone.
struct FolderLock(Arc<DataDir>);

impl Drop for FolderLock {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// What start-up found on the disk.
struct Found {
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
        node.until_ready().await?;
        tracing::info!(
            through = node.consensus.status().applied,
            took_ms = began.elapsed().as_millis() as u64,
            "ready"
        );
        Ok(node)
    }

    /// Opens a node: reads the snapshot and the log, opens its ports and looks for the rest of its cell. Must
    /// be called on the runtime that is to carry it; a current-thread one is the fastest.
    ///
    /// Boxed, here and not where it is awaited: the code of an async function is made anew in every crate that awaits it,
    /// and this one is the whole node.
    pub fn open(config: NodeConfig) -> BoxFuture<'static, Result<Node, StartError>> {
        Box::pin(Node::open_now(config))
    }

    async fn open_now(config: NodeConfig) -> Result<Node, StartError> {
        let home = Arc::new(match &config.data_dir {
            Some(path) => DataDir::open(path, config.node_id)?,
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
        // A port that is in use is found before anything is written.
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
        let given = match config.members.is_empty() {
            true => BTreeMap::from([(node_id, own.peer.clone())]),
            false => config.members.clone(),
        };
        security.may_have_members(given.len().max(home.identity().given.len()))?;
        if home.identity().given.is_empty() {
            let path = config.data_dir.clone().unwrap_or_default();
            home.remember_given(&given).map_err(|error| DataDirError::Io { path, error })?;
        }

        let Found { log, snapshots, snapshot_meta, mut table } = read_disk(&config, &home)?;
        table.support(supported)?;
        check_term(&config, &log)?;
        let mut nonce = [0; 8];
        lockkeeper_net::random::fill(&mut nonce).map_err(StartError::Random)?;
        let metrics = Metrics::new(log.sync_seconds());
        let slow = Slow::new(config.slow_acquire);
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
            given: given.iter().map(as_member).collect(),
            dialer: Dialer::new(security.dialing.clone()),
            versions: config.versions,
        })
        .await?;
        let guard = security.guard.clone();
        let api = Api::new(shared.clone(), consensus.clone(), home.clone(), snapshots.clone(), guard);
        let (end, ended) = watch::channel(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(propose::run(shared.clone(), consensus.clone(), log.clone()));
        tasks.spawn(timers::run(shared.clone(), consensus.clone(), log.clone()));
        tasks.spawn(upgrade::run(shared.clone(), consensus.clone(), home.clone()));
        tasks.spawn(take_snapshots(consensus.clone(), snapshots));
        let lead = {
            let (shared, consensus, end) = (shared.clone(), consensus.clone(), end.clone());
            let log = log.clone();
            async move {
                let why = leadership::follow(shared, consensus, log).await;
                end.send_replace(Some(why));
            }
        };
        tasks.spawn(lead);
        if let Some(listener) = listener {
            tasks.spawn(listener.serve(api.clone(), peers.clone(), security.clone()));
        }
        if let Some(listener) = peer_listener {
            tasks.spawn(listener.serve_peers(peers.clone(), security.clone(), api.clone()));
        }
        let until_gone = {
            let (home, consensus, end) = (home.clone(), consensus.clone(), end.clone());
            async move {
                let why = home.until_gone().await;
                tracing::error!("{why}");
                end.send_replace(Some(why));
                consensus.shutdown().await;
            }
        };
        tasks.spawn(until_gone);
        let folder = FolderLock(home.clone());
        let formation = Formation { home, consensus: consensus.clone(), given, own };
        // What can be known at once is said at once; what only others can tell ends the node later.
        formation.begin().await??;
        tasks.spawn(async move {
            let why = match formation.run().await {
                Ok(misfit) => misfit.to_string(),
                Err(failure) => failure.to_string(),
            };
            end.send_replace(Some(why));
        });
        Ok(Node { api, consensus, peers, security, ended, tasks, address, _folder: folder })
    }

    async fn until_ready(&self) -> Result<(), Failure> {
        let began = Instant::now();
        let mut said = false;
        loop {
            if matches!(self.api.ready(), Ok(()) | Err(Failure::NotLeader { leader: Some(_) })) {
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

    /// Waits until the cell has a leader that this node knows of.
    pub async fn ready(&self) -> Result<(), Failure> {
        self.until_ready().await
    }

    /// Where it listens for clients, if it was told to.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The operations of this node.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Opens one more port for clients.
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

    /// The frames of a client in this process: what goes over the stream of the gRPC service, without a
    /// network. Must be called on the node's own runtime; the ends may go anywhere.
    pub fn open_stream(&mut self) -> (mpsc::Sender<v1::ClientFrame>, mpsc::Receiver<v1::ServerFrame>) {
        let (client, inbound) = mpsc::channel(FRAMES_BUFFERED);
        let (outbound, server) = mpsc::channel(FRAMES_BUFFERED);
        let inbound = ReceiverStream::new(inbound).map(Ok::<_, std::convert::Infallible>);
        let mut stream = ClientStream::new(inbound, self.api.clone());
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

    /// Stops the node. What was acknowledged is on the disk already. A leader hands over first, so that the cell
    /// is not without one until somebody notices.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        Box::pin(self.stop_now())
    }

    async fn stop_now(mut self) {
        if self.consensus.successor().is_some()
            && let Err(failure) = leadership::hand_over(self.api.shared(), &self.consensus).await
        {
            tracing::info!(%failure, "the leadership was not handed over");
        }
        self.tasks.shutdown().await;
        self.api.shared().leader_term.leave(None);
        self.consensus.say_goodbye().await;
        self.consensus.shutdown().await;
    }
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
            tracing::error!(%failure, "no snapshot was taken");
        }
    }
}

fn read_disk(config: &NodeConfig, home: &DataDir) -> Result<Found, StartError> {
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
        return Err(StartError::DataDir(DataDirError::Strange {
            path: config.data_dir.clone().unwrap_or_default(),
            what: format!(
                "the log begins at entry {first}, but the snapshot that covers what is before it is \
                 missing or older. {}",
                log::REPAIR
            ),
        }));
    }
    say_what_was_found(config, through, &table, &report);
    Ok(Found { log, snapshots, snapshot_meta, table })
}

/// A vote in an impossible term would end the process at its first election.
fn check_term(config: &NodeConfig, log: &LogStore) -> Result<(), StartError> {
    let path = config.data_dir.clone().unwrap_or_default();
    let vote = log.vote().map_err(|error| DataDirError::Io { path: path.clone(), error })?;
    terms::check_persisted(vote.as_ref()).map_err(|what| {
        let what = format!("{what}. {}", log::REPAIR);
        StartError::DataDir(DataDirError::Strange { path, what })
    })
}

fn say_what_was_found(
    config: &NodeConfig,
    through: Option<u64>,
    table: &LockTable,
    report: &log::OpenReport,
) {
    let Some(folder) = &config.data_dir else {
        tracing::info!("everything is kept in memory and gone with the process");
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
            "the log ended in a write that was cut short; nothing of it had been acknowledged, so it was removed"
        );
    }
}
