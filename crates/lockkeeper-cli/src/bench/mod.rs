//! `lockkeeper bench`: throughput and latency of an engine.

mod compare;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use lockkeeper_lab::bench::{self, Connections, Options, Release, Workload};

use crate::client::{Output, block_on, print, print_json};
use crate::failure::Failure;

/// Measure an engine
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Each run also measures the limits of this machine: an append with fdatasync, and a round trip over loopback.
The engine `redis://host:port` is the bare recipe (SET NX PX and a compare-and-delete script) straight on Redis, as
a baseline.

Examples:
  lockkeeper bench --clients 256 --connections each
  lockkeeper bench --clients 256 --connections each --release dropped
  lockkeeper bench --workload handoff --clients 64
  lockkeeper bench --engine redis://127.0.0.1:6379 --clients 256 --connections each
  lockkeeper bench compare                            all engines side by side"
)]
pub(crate) struct Bench {
    #[command(subcommand)]
    more: Option<More>,
    /// Engine to measure
    #[arg(
        long,
        value_name = "URL",
        default_value = "lockkeeper://127.0.0.1:7420",
        env = "LOCKKEEPER_ENGINE"
    )]
    engine: String,
    /// One lock for each client (uncontended), or one lock for all clients (handoff)
    #[arg(long, value_enum, default_value = "uncontended")]
    workload: WorkloadName,
    /// Number of concurrent clients
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    clients: u16,
    /// One shared connection, or one for each client
    #[arg(long, value_enum, default_value = "shared")]
    connections: ConnectionsName,
    /// Wait for each release, or drop the guard and continue
    #[arg(long, value_enum, default_value = "waited")]
    release: ReleaseName,
    /// Seconds to measure
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Folder on the disk to measure (append + fdatasync): use the disk of the node
    #[arg(long, default_value = ".", value_name = "FOLDER")]
    scratch_dir: PathBuf,
    /// A table for people or JSON for programs
    #[arg(long, value_enum, default_value = "table", value_name = "FORMAT")]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum More {
    /// Compare all engines in one run
    Compare(compare::Compare),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum WorkloadName {
    Uncontended,
    Handoff,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ConnectionsName {
    Shared,
    Each,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ReleaseName {
    Waited,
    Dropped,
}

impl Bench {
    pub(crate) fn output(&self) -> Output {
        match &self.more {
            Some(More::Compare(compare)) => compare.output,
            None => self.output,
        }
    }

    pub(crate) fn run(self) -> Result<u8, Failure> {
        if let Some(More::Compare(compare)) = self.more {
            return compare.run();
        }
        let options = Options {
            engine: self.engine,
            workload: match self.workload {
                WorkloadName::Uncontended => Workload::Uncontended,
                WorkloadName::Handoff => Workload::Handoff,
            },
            clients: self.clients.into(),
            connections: match self.connections {
                ConnectionsName::Shared => Connections::Shared,
                ConnectionsName::Each => Connections::Each,
            },
            release: match self.release {
                ReleaseName::Waited => Release::Waited,
                ReleaseName::Dropped => Release::Dropped,
            },
            duration: Duration::from_secs(self.seconds),
            scratch_dir: self.scratch_dir,
        };
        let terminal = std::io::stderr().is_terminal();
        let show = |passed: Duration, pairs: u64| {
            let line = format!("{:>3} of {} s, {pairs} pairs", passed.as_secs(), options.duration.as_secs());
            if terminal {
                eprint!("\r{line}");
            } else {
                eprintln!("{line}");
            }
        };
        let report = block_on(async { bench::run(&options, show).await.map_err(failed) })?;
        if terminal {
            eprintln!();
        }
        match self.output {
            Output::Table => print(&format!("{report}\n"))?,
            Output::Json => print_json(&report)?,
        }
        Ok(0)
    }
}

fn failed(error: bench::BenchError) -> Failure {
    match error {
        bench::BenchError::Engine(error) => Failure::from(error),
        other => Failure::other(other.to_string()),
    }
}
