//! `lockkeeper serve`: one node of a cell.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lockkeeper_server::config::ENTRIES_BEHIND_SNAPSHOT;
use lockkeeper_server::raft::snapshot::COMMANDS_BETWEEN;
use lockkeeper_server::raft::{Timing, TimingPreset};
use lockkeeper_server::security::CrowdLimits;
use lockkeeper_server::versions::Versions;
use lockkeeper_server::{KeyPair, Node, NodeConfig, Security, StartError};
use tokio::signal::unix::{SignalKind, signal};

use crate::client;
use crate::failure::Failure;
use crate::logging::{self, LogFormat};
use crate::notify::Notify;

/// Serve a cell: durable, with its console, on 127.0.0.1:7420
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper serve                       a cell of one, data in ./lockkeeper-data
  lockkeeper serve --listen 0.0.0.0:7420 --data-dir /var/lib/lockkeeper \\
      --tls-cert node.pem --tls-key node.key --root-token-file root.token
  LOCKKEEPER_LOG=debug lockkeeper serve --log-format json

A cell of three, which goes on when one node is lost; the same list on each machine,
in any order:
  lockkeeper serve --node-id 1 --listen 10.0.0.1:7420 --insecure \\
      --cell 1=10.0.0.1:7420,2=10.0.0.2:7420,3=10.0.0.3:7420
The first time, all of them must be there. Afterwards members are changed with
`lockkeeper member`, and --cell may be left out.

The first line on stdout says where it listens once it is ready; port 0 takes
any free one. Logs are on stderr. What was acknowledged is on the disk: it can
be stopped and killed at any time. TERM and INT stop it with exit code 0.

Each flag can be a line of lockkeeper.toml or a variable as well: `--data-dir` is data_dir
there and LOCKKEEPER_DATA_DIR. A flag is stronger than the environment, the environment than
the file. `lockkeeper config show` says what is in force and why, `lockkeeper config example`
prints a file to begin with. Under systemd (Type=notify) it says when it is ready.

It does not start (exit code 1, the reason on stderr) if the data folder is in
use by another process, cannot be written, belongs to another node or is damaged,
or if the address is in use. An address that other machines can reach needs TLS and
something by which callers are known, or --insecure.")]
pub(crate) struct Serve {
    /// Address for clients: gRPC, HTTP and the console
    #[arg(long, default_value = "127.0.0.1:7420")]
    listen: String,
    /// Folder for the log and the snapshots; made if it is not there
    #[arg(long, default_value = "./lockkeeper-data")]
    data_dir: PathBuf,
    /// Which node of the cell this is [default: the one that the folder belongs to, or 1]
    #[arg(long)]
    node_id: Option<u64>,
    /// The members of the cell and their addresses: id=host:port,...
    #[arg(long, value_delimiter = ',', value_parser = member)]
    cell: Vec<(u64, String)>,
    /// Address for the other members, if they are to have a port of their own [default: the same as --listen]
    #[arg(long, value_name = "ADDRESS")]
    peer_listen: Option<String>,
    #[command(flatten)]
    timing: TimingArguments,
    /// A request that was granted after a wait of this length gets a line in the log; 0s: none does
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::duration::parse)]
    slow_acquire: Duration,
    /// What is logged: a level, or levels of parts
    #[arg(long, value_name = "FILTER", default_value = logging::FILTER, value_parser = logging::filter)]
    log: String,
    #[command(flatten)]
    security: SecurityArguments,
    #[command(flatten)]
    snapshots: SnapshotArguments,
    /// Logs as text or as JSON
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
    /// File with settings: each flag without its dashes is a key, such as data_dir
    /// [default: ./lockkeeper.toml or /etc/lockkeeper/lockkeeper.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn member(text: &str) -> Result<(u64, String), String> {
    let (id, address) = text.split_once('=').ok_or("a member is id=host:port, such as 1=10.0.0.1:7420")?;
    let id = id.parse().map_err(|_| format!("{id} is no node id: take a number such as 1"))?;
    Ok((id, address.to_owned()))
}

/// The versions that the node supports. A test build can be told to support those that are not released yet.
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
        // The hot path of a node is on one thread: a wake-up of another one costs more than an operation.
        client::block_on(async { self.serve().await.map_err(Failure::other) })?;
        Ok(0)
    }

    async fn serve(self) -> Result<(), String> {
        // Before it says that it serves: whoever reads that may stop it at once.
        let failed = |error: std::io::Error| format!("signals cannot be received: {error}");
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let words = |error: StartError| error.to_string();
        let members = BTreeMap::from_iter(self.cell.iter().cloned());
        if members.len() < self.cell.len() {
            return Err("--cell names a node twice: each id has one address".to_owned());
        }
        raise_open_files();
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
        let node = Node::open(config).await.map_err(words)?;
        let address = node.address().map(|address| address.to_string()).unwrap_or_default();
        tokio::select! {
            ready = node.ready() => ready.map_err(|failure| format!("the node cannot go on: {failure}"))?,
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
        let notify = Notify::from_environment();
        notify.ready(&address);
        let scheme = if self.security.tls_cert.is_some() { "https" } else { "http" };
        // That nobody reads it is no reason not to serve.
        let _ = writeln!(
            std::io::stdout(),
            "lockkeeper serves on {address} (console: {scheme}://{address}/, data: {})\n\
             try: lockkeeper run demo --engine lockkeeper://{address} -- sh -c 'echo my token is $LOCKKEEPER_TOKEN'",
            self.data_dir.display()
        );

        tokio::select! {
            _ = terminate.recv() => tracing::info!("stopping on SIGTERM"),
            _ = interrupt.recv() => tracing::info!("stopping on SIGINT"),
            why = node.ended() => return Err(format!("the node cannot go on: {why}")),
            () = notify.live() => {}
        }
        notify.stopping();
        node.stop().await;
        Ok(())
    }
}

/// How far apart the members may be.
#[derive(Debug, Args)]
struct TimingArguments {
    /// How far apart the members are: lan (round trips up to 50 ms), region (150 ms) or global (400 ms). The same on all nodes;
    /// changed by restarting them one by one
    #[arg(long, value_name = "PRESET", default_value = "lan")]
    timing: TimingPreset,
    /// Between two heartbeats of the leader [default: that of --timing]
    #[arg(long, value_name = "TIME", value_parser = crate::duration::parse)]
    heartbeat: Option<Duration>,
    /// How long a silent leader is waited for [default: that of --timing]
    #[arg(long, value_name = "TIME", value_parser = crate::duration::parse)]
    election_timeout: Option<Duration>,
}

impl TimingArguments {
    fn settings(&self) -> Result<Timing, String> {
        Timing::custom(self.timing, self.heartbeat, self.election_timeout)
    }
}

/// For tests alone, which have no time for half a million commands: flags that no help shows and no file can set, and the
/// variables LOCKKEEPER_SNAPSHOT_EVERY and LOCKKEEPER_SNAPSHOT_BEHIND.
#[derive(Debug, Args)]
struct SnapshotArguments {
    /// A snapshot is taken after this many commands
    #[arg(long, value_name = "COUNT", hide = true, default_value_t = COMMANDS_BETWEEN)]
    snapshot_every: u64,
    /// So many entries of the log are kept behind it
    #[arg(long, value_name = "COUNT", hide = true, default_value_t = ENTRIES_BEHIND_SNAPSHOT)]
    snapshot_behind: u64,
}

/// Who may come in. Secrets are in files: a command line can be read by every user of the machine.
#[derive(Debug, Args)]
#[command(next_help_heading = "Security (docs/security.md)")]
struct SecurityArguments {
    /// The node's certificate with its chain (PEM): clients are served under TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The authority of clients' certificates (PEM): the name in a certificate is who the client is. Without
    /// --root-token-file everybody must have one
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// The authority of the members' certificates (PEM): only who has one can vote and append
    #[arg(long, value_name = "FILE")]
    peer_ca: Option<PathBuf>,
    /// What this node shows to the other members [default: --tls-cert]
    #[arg(long, value_name = "FILE", requires = "peer_key")]
    peer_cert: Option<PathBuf>,
    /// The key of that certificate [default: --tls-key]
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_key: Option<PathBuf>,
    /// A file with the token of the identity that may do everything, the same on all nodes; everybody else may do what
    /// `lockkeeper access` allows
    #[arg(long, value_name = "FILE")]
    root_token_file: Option<PathBuf>,
    /// Use the root token's file although everybody on this machine may read it: for file systems without modes
    #[arg(long)]
    root_token_readable: bool,
    /// The name in the client certificate of an identity that may do everything
    #[arg(long, value_name = "NAME")]
    root_name: Option<String>,
    /// Serve other machines although nobody is asked who they are, or everybody on the way can read along
    #[arg(long)]
    insecure: bool,
    /// Host names that requests may carry where callers are not authenticated, besides IP addresses, localhost and the
    /// names in --listen, --cell and the node's certificate; * allows every name
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
    /// Most connections that are served at once
    #[arg(long, value_name = "COUNT", default_value_t = CrowdLimits::default().connections_max)]
    connections_max: usize,
    /// Most connections from one address
    #[arg(long, value_name = "COUNT", default_value_t = CrowdLimits::default().per_address_max)]
    connections_per_address_max: usize,
    /// Most connections that have not said anything yet; beyond it the oldest of them is closed
    #[arg(long, value_name = "COUNT", default_value_t = CrowdLimits::default().unheard_max,
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
            root_name: self.root_name.clone(),
            insecure: self.insecure,
            allowed_hosts: self.allowed_hosts.clone(),
            crowd: CrowdLimits {
                connections_max: self.connections_max,
                per_address_max: self.connections_per_address_max,
                unheard_max: self.connections_silent_max,
            },
        })
    }
}

/// Each connection is an open file, and the usual limit is meant for programs with few. The system's own bound stays.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::debug!(%error, "the number of open files stays limited");
    }
}
