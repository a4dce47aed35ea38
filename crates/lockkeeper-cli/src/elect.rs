//! `lockkeeper elect NAME --value V -- COMMAND`: a command that runs only on the one that leads.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

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

Start it on every host: one of them leads, the others stand by and take over in the
order in which they came. An election is the lock election/NAME, so `who`, `ls` and
`force-release` work with it.

The command finds in its environment, besides what `run` gives:
  LOCKKEEPER_EPOCH      the fencing token of this office: greater than that of every
                        leader before. Hand it to every resource with every write

It is ended before another can lead, as with `run`, whose exit codes it has.")]
pub(crate) struct Elect {
    /// The election
    name: String,
    /// What to announce as the leader: an address, for instance. At most 4 KiB
    #[arg(long, value_name = "TEXT", default_value = "")]
    value: String,
    /// How long the office outlives us if this machine dies. Renewed every third of it
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    ttl: Duration,
    /// Wait for the office at most this long [default: as long as it takes]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "no_wait")]
    wait: Option<Duration>,
    /// Do not wait: exit with 75 if somebody else leads
    #[arg(long)]
    no_wait: bool,
    /// Time between TERM and KILL, at most half the TTL [default: a quarter of the TTL, at most 5s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    kill_after: Option<Duration>,
    /// Who we are, for those who ask who leads [default: host/process/command]
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    /// Say on stderr what it waits for, also if that is no terminal
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
        let mut run = Run::new(format!("election/{}", self.name), self.client, self.command);
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
