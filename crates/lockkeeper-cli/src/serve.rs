//! `lockkeeper serve`: one node of a cell.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lockkeeper_server::{Node, NodeConfig, StartError};
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
  lockkeeper serve --listen 0.0.0.0:7420 --data-dir /var/lib/lockkeeper
  LOCKKEEPER_LOG=debug lockkeeper serve --log-format json

A cell of three, which goes on when one node is lost; the same list on each machine,
in any order:
  lockkeeper serve --node-id 1 --listen 0.0.0.0:7420 \\
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
or if the address is in use.")]
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
    /// A request that was granted after a wait of this length gets a line in the log; 0s: none does
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::duration::parse)]
    slow_acquire: Duration,
    /// What is logged: a level, or levels of parts
    #[arg(long, value_name = "FILTER", default_value = logging::FILTER, value_parser = logging::filter)]
    log: String,
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
        let config = NodeConfig {
            node_id: self.node_id,
            listen: Some(self.listen.clone()),
            peer_listen: self.peer_listen.clone(),
            members,
            slow_acquire: self.slow_acquire,
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
        // That nobody reads it is no reason not to serve.
        let _ = writeln!(
            std::io::stdout(),
            "lockkeeper serves on {address} (console: http://{address}/, data: {})\n\
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
