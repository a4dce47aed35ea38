//! `lockkeeper elect NAME --value V -- COMMAND`: runs a command on the leader only.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use lockkeeper::Election;

use crate::client::{Client, Output};
use crate::duration;
use crate::failure::Failure;
use crate::run::Run;

/// Run a command while leading an election
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper elect scheduler --value $(hostname):8080 -- ./scheduler
  lockkeeper observe scheduler                        who leads, in another terminal

Start it on every host: one of them leads, the others stand by and take over in
FIFO order. An election is the lock election/NAME, so `who`, `ls` and
`force-release` work with it.

The environment of the command contains the variables of `run`, and:
  LOCKKEEPER_EPOCH      the fencing token of the leader, greater than that of every
                        earlier leader. Pass it to every resource with every write

The command is ended before another candidate can lead. Exit codes are those of `run`.")]
pub(crate) struct Elect {
    /// Name of the election
    name: String,
    /// Value to announce as the leader, such as an address. At most 4 KiB
    #[arg(long, value_name = "TEXT", default_value = "")]
    value: String,
    /// TTL: how long leadership lasts if this machine dies. It is renewed every third of the TTL
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    ttl: Duration,
    /// Wait at most this long to become the leader [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "no_wait")]
    wait: Option<Duration>,
    /// Do not wait: exit with 75 if another candidate leads
    #[arg(long)]
    no_wait: bool,
    /// Time between TERM and KILL, at most half the TTL [default: a quarter of the TTL, at most 5s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    kill_after: Option<Duration>,
    /// Owner shown to others [default: host/process/command]
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    /// Report progress on stderr even if it is not a terminal
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    client: Client,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Elect {
    pub(crate) fn output(&self) -> Output {
        self.client.output
    }

    pub(crate) fn run(self) -> Result<u8, Failure> {
        let mut run = Run::new(Election::lock_of(&self.name), self.client, self.command);
        run.value = Some(self.value);
        run.ttl = self.ttl;
        run.wait = self.wait;
        run.no_wait = self.no_wait;
        run.kill_after = self.kill_after;
        run.owner = self.owner;
        run.verbose = self.verbose;
        run.run()
    }
}
