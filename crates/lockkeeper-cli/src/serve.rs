//! `lockkeeper serve`: a node of a cell.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lockkeeper_server::config::ENTRIES_BEHIND_SNAPSHOT;
use lockkeeper_server::formation::versions::Versions;
use lockkeeper_server::raft::snapshot::COMMANDS_BETWEEN;
use lockkeeper_server::raft::{Timing, TimingPreset};
use lockkeeper_server::security::ConnectionLimits;
use lockkeeper_server::{KeyPair, Node, NodeConfig, Security, StartError};
use tokio::signal::unix::{SignalKind, signal};

use crate::client;
use crate::failure::Failure;
use crate::logging::{self, LogFormat};
use crate::notify::Notify;

/// Run a node: durable, with a console, on 127.0.0.1:7420
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper serve                       a cell of one, data in ./lockkeeper-data
  lockkeeper serve --listen 0.0.0.0:7420 --data-dir /var/lib/lockkeeper \\
      --tls-cert node.pem --tls-key node.key --root-token-file root.token
  LOCKKEEPER_LOG=debug lockkeeper serve --log-format json

A cell of three survives the loss of one node. Give the same list to each machine, in
any order:
  lockkeeper serve --node-id 1 --listen 10.0.0.1:7420 --insecure \\
      --cell 1=10.0.0.1:7420,2=10.0.0.2:7420,3=10.0.0.3:7420
The first start needs all nodes. Afterwards `lockkeeper member` changes the members, and
--cell may be omitted.

When the node is ready, the first line on stdout contains its address; port 0 takes any free
port. Logs go to stderr. Everything acknowledged is on disk, so the node can be killed at any
time. TERM and INT stop it with exit code 0.

Each flag is also a key of lockkeeper.toml and a variable: --data-dir is data_dir and
LOCKKEEPER_DATA_DIR. A flag overrides the environment, the environment overrides the file.
`lockkeeper config show` shows the settings and their sources, `lockkeeper config example` prints
a file to start from. Under systemd (Type=notify) the node reports when it is ready.

The node does not start (exit code 1, reason on stderr) if the data folder is in use, not
writable, damaged or belongs to another node, or if the address is in use. An address that
other machines can reach needs TLS and a way to authenticate callers, or --insecure.")]
pub(crate) struct Serve {
    /// Address for clients: gRPC, HTTP and the console
    #[arg(long, default_value = "127.0.0.1:7420")]
    listen: String,
    /// Folder for the log and the snapshots; created if it does not exist
    #[arg(long, default_value = "./lockkeeper-data")]
    data_dir: PathBuf,
    /// Id of this node [default: the id in the data folder, or 1]
    #[arg(long)]
    node_id: Option<u64>,
    /// The members of the cell and their addresses: id=host:port,...
    #[arg(long, value_delimiter = ',', value_parser = member)]
    cell: Vec<(u64, String)>,
    /// Separate address for the other members [default: the same as --listen]
    #[arg(long, value_name = "ADDRESS")]
    peer_listen: Option<String>,
    #[command(flatten)]
    timing: TimingArguments,
    /// Log requests that waited this long or longer for their grant; 0s turns this off
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::duration::parse)]
    slow_acquire: Duration,
    /// Log filter: a level, or levels per target
    #[arg(long, value_name = "FILTER", default_value = logging::FILTER, value_parser = logging::filter)]
    log: String,
    #[command(flatten)]
    security: SecurityArguments,
    #[command(flatten)]
    snapshots: SnapshotArguments,
    /// Format of the log
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
    /// File with settings: each flag is a key, such as data_dir
    /// [default: ./lockkeeper.toml or /etc/lockkeeper/lockkeeper.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn member(text: &str) -> Result<(u64, String), String> {
    let (id, address) =
        text.split_once('=').ok_or("write a member as id=host:port, such as 1=10.0.0.1:7420")?;
    let id = id.parse().map_err(|_| format!("\"{id}\" is not a node id (try 1)"))?;
    Ok((id, address.to_owned()))
}

/// The versions that the node supports. A test build can support unreleased ones.
fn versions() -> Versions {
    #[cfg(feature = "next-version")]
    if std::env::var_os("LOCKKEEPER_TEST_NEXT_VERSION").is_some() {
        return Versions::NEXT;
    }
    Versions::RELEASED
}

impl Serve {
    /// Serves until a signal or a failure.
    pub(crate) fn run(self) -> Result<u8, Failure> {
        let _logging = logging::start(&self.log, self.log_format);
        // A node runs on one thread: waking another thread costs more than an operation.
        client::block_on(async { self.serve().await.map_err(Failure::other) })?;
        Ok(0)
    }

    async fn serve(self) -> Result<(), String> {
        // Installed before the ready line is printed: a reader of that line may stop the node at once.
        let failed = |error: std::io::Error| format!("failed to install signal handlers: {error}");
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let describe = |error: StartError| error.to_string();
        let members = BTreeMap::from_iter(self.cell.iter().cloned());
        if members.len() < self.cell.len() {
            return Err("--cell names a node twice: give each id one address".to_owned());
        }
        raise_open_file_limit();
        let config = NodeConfig {
            node_id: self.node_id,
            listen: Some(self.listen.clone()),
            peer_listen: self.peer_listen.clone(),
            members,
            timing: self.timing.settings()?,
            slow_acquire: self.slow_acquire,
            commands_between_snapshots: self.snapshots.snapshot_every,
            entries_behind_snapshot: self.snapshots.snapshot_behind,
            security: self.security.settings()?,
            versions: versions(),
            ..NodeConfig::durable(&self.data_dir)
        };
        let node = Node::open(config).await.map_err(describe)?;
        let address = node.address().map(|address| address.to_string()).unwrap_or_default();
        tokio::select! {
            ready = node.ready() => ready.map_err(|failure| format!("the node stopped: {failure}"))?,
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
        let notify = Notify::from_environment();
        notify.ready(&address);
        let scheme = if self.security.tls_cert.is_some() { "https" } else { "http" };
        // A closed stdout must not stop the node.
        let _ = writeln!(
            std::io::stdout(),
            "lockkeeper serves on {address} (console: {scheme}://{address}/, data: {})\n\
             try: lockkeeper run demo --engine lockkeeper://{address} -- sh -c 'echo my token is $LOCKKEEPER_TOKEN'",
            self.data_dir.display()
        );

        tokio::select! {
            _ = terminate.recv() => tracing::info!("stopping on SIGTERM"),
            _ = interrupt.recv() => tracing::info!("stopping on SIGINT"),
            why = node.ended() => return Err(format!("the node stopped: {why}")),
            () = notify.send_watchdog() => {}
        }
        notify.stopping();
        node.stop().await;
        Ok(())
    }
}

/// Timing of the cell, by the distance between its members.
#[derive(Debug, Args)]
struct TimingArguments {
    /// Distance between members: lan (round trips up to 50 ms), region (150 ms) or global (400 ms). Use the same on all
    /// nodes; a rolling restart changes it
    #[arg(long, value_name = "PRESET", default_value = "lan")]
    timing: TimingPreset,
    /// Interval between heartbeats of the leader [default: that of --timing]
    #[arg(long, value_name = "TIME", value_parser = crate::duration::parse)]
    heartbeat: Option<Duration>,
    /// Silence of the leader after which an election starts [default: that of --timing]
    #[arg(long, value_name = "TIME", value_parser = crate::duration::parse)]
    election_timeout: Option<Duration>,
}

impl TimingArguments {
    fn settings(&self) -> Result<Timing, String> {
        Timing::custom(self.timing, self.heartbeat, self.election_timeout)
    }
}

/// Hidden flags for tests, which cannot wait for half a million commands. Their variables are LOCKKEEPER_SNAPSHOT_EVERY and
/// LOCKKEEPER_SNAPSHOT_BEHIND.
#[derive(Debug, Args)]
struct SnapshotArguments {
    /// Commands between two snapshots
    #[arg(long, value_name = "COUNT", hide = true, default_value_t = COMMANDS_BETWEEN)]
    snapshot_every: u64,
    /// Log entries to keep behind a snapshot
    #[arg(long, value_name = "COUNT", hide = true, default_value_t = ENTRIES_BEHIND_SNAPSHOT)]
    snapshot_behind: u64,
}

/// TLS and authentication. Secrets are in files, because every user of the machine can read a command line.
#[derive(Debug, Args)]
#[command(next_help_heading = "Security (docs/security.md)")]
struct SecurityArguments {
    /// The node's certificate with its chain (PEM); turns TLS on for clients
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Authority of client certificates (PEM); the name in a certificate is the client's identity. Without
    /// --root-token-file every client needs one
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Authority of the members' certificates (PEM): only their owners can vote and append
    #[arg(long, value_name = "FILE")]
    peer_ca: Option<PathBuf>,
    /// Certificate that this node presents to other members [default: --tls-cert]
    #[arg(long, value_name = "FILE", requires = "peer_key")]
    peer_cert: Option<PathBuf>,
    /// Key of that certificate [default: --tls-key]
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_key: Option<PathBuf>,
    /// File with the token of root, who may do everything; the same on all nodes. All other callers need a rule of
    /// `lockkeeper access`
    #[arg(long, value_name = "FILE")]
    root_token_file: Option<PathBuf>,
    /// Accept a root token file that every user of this machine can read: for file systems without modes
    #[arg(long)]
    root_token_readable: bool,
    /// Accept a data folder, keys and a root token that other users can read or change: for file systems without owners or
    /// modes
    #[arg(long)]
    allow_insecure_files: bool,
    /// Name in a client certificate whose owner may do everything
    #[arg(long, value_name = "NAME")]
    root_name: Option<String>,
    /// Serve other machines without authentication or without TLS
    #[arg(long)]
    insecure: bool,
    /// Host names that requests may carry while callers are not authenticated, besides IP addresses, localhost and the
    /// names in --listen, --cell and the node's certificate; * allows every name
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
    /// Maximum number of connections
    #[arg(long, value_name = "COUNT", default_value_t = ConnectionLimits::default().connections_max)]
    connections_max: usize,
    /// Maximum number of connections from one address
    #[arg(long, value_name = "COUNT", default_value_t = ConnectionLimits::default().per_address_max)]
    connections_per_address_max: usize,
    /// Maximum number of connections that have not sent anything yet; beyond that, the oldest is closed
    #[arg(long, value_name = "COUNT", default_value_t = ConnectionLimits::default().silent_max,
        env = "LOCKKEEPER_CONNECTIONS_SILENT_MAX")]
    connections_silent_max: usize,
}

impl SecurityArguments {
    fn settings(&self) -> Result<Security, String> {
        let pair = |certificate: &Option<PathBuf>, key: &Option<PathBuf>| {
            Some(KeyPair { certificate: certificate.clone()?, key: key.clone()? })
        };
        Ok(Security {
            tls: pair(&self.tls_cert, &self.tls_key),
            client_ca: self.client_ca.clone(),
            peer_ca: self.peer_ca.clone(),
            peer: pair(&self.peer_cert, &self.peer_key),
            root_token_file: self.root_token_file.clone(),
            root_token_readable: self.root_token_readable,
            allow_insecure_files: self.allow_insecure_files,
            root_name: self.root_name.clone(),
            insecure: self.insecure,
            allowed_hosts: self.allowed_hosts.clone(),
            connection_limits: ConnectionLimits {
                connections_max: self.connections_max,
                per_address_max: self.connections_per_address_max,
                silent_max: self.connections_silent_max,
            },
        })
    }
}

/// Raises the limit on open files to the maximum: each connection is an open file.
fn raise_open_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::debug!(%error, "failed to raise the limit on open files");
    }
}
