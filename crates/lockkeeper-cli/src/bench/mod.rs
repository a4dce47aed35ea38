//! `lockkeeper bench`: throughput and latency of an engine.
//!
//! For comparison, each run also measures the limits of the machine: one append with fdatasync, and one round trip over
//! loopback.

mod contender;
mod etcd;
mod limits;
mod measure;
mod redis;
mod report;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use self::contender::BenchError;
use self::limits::MachineLimits;
use self::report::Report;
use crate::client::{DEFAULT_ENGINE, Output, block_on, print, print_json};
use crate::failure::Failure;

const WARM_UP_MAX: Duration = Duration::from_millis(500);
/// Time limit for the last acquires of a run: with one lock for all, each client waits for one more grant.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// Measure an engine
#[derive(Debug, Args)]
#[command(after_help = "\
Each run also measures the limits of this machine: an append with fdatasync, and a round trip over loopback.

`--recipe bare` measures the hand-written recipe, directly on the server's protocol, as a baseline: SET NX PX and a
compare-and-delete script on Redis, a lease, a transaction and a watch on etcd. It is the default for `redis://`;
`--recipe library` measures Lockkeeper's engine there.

Examples:
  lockkeeper bench --clients 256 --connections each
  lockkeeper bench --clients 256 --connections each --release dropped
  lockkeeper bench --workload handoff --clients 64
  lockkeeper bench --engine redis://127.0.0.1:6379 --clients 256 --connections each")]
pub(crate) struct Bench {
    /// Engine to measure
    #[arg(
        long,
        value_name = "URL",
        default_value = DEFAULT_ENGINE,
        env = "LOCKKEEPER_ENGINE",
        hide_env_values = true
    )]
    engine: String,
    /// Recipe to measure: the library's or the bare one [default: bare for redis://, else library]
    #[arg(long, value_enum)]
    recipe: Option<Recipe>,
    /// One lock for each client (uncontended), or one lock for all clients (handoff)
    #[arg(long, value_enum, default_value = "uncontended")]
    workload: Workload,
    /// Number of concurrent clients
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    clients: u16,
    /// One shared connection, or one for each client
    #[arg(long, value_enum, default_value = "shared")]
    connections: Connections,
    /// Wait for each release, or drop the guard and continue
    #[arg(long, value_enum, default_value = "waited")]
    release: Release,
    /// Seconds to measure; fractions are allowed
    #[arg(long, default_value = "5", value_parser = seconds)]
    seconds: Duration,
    /// Folder on the disk to measure (append + fdatasync): use the disk of the node
    #[arg(long, default_value = ".", value_name = "FOLDER")]
    scratch_dir: PathBuf,
    /// A table for people or JSON for programs
    #[arg(short, long, value_enum, default_value = "table", value_name = "FORMAT")]
    output: Output,
}

/// The recipe that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Recipe {
    /// Lockkeeper's engine.
    Library,
    /// The hand-written recipe, directly on the server's protocol.
    Bare,
}

/// The workload of the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Workload {
    /// Every client acquires and releases a lock of its own.
    Uncontended,
    /// All clients queue for one lock.
    Handoff,
}

/// How the clients connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Connections {
    /// One connection for all clients.
    Shared,
    /// One connection for each client.
    Each,
}

/// How a lock is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Release {
    /// The client waits for the answer to its release.
    Waited,
    /// The guard is dropped: the release runs in the background.
    Dropped,
}

/// Settings of a run.
#[derive(Debug, Clone)]
struct Options {
    engine: String,
    recipe: Recipe,
    workload: Workload,
    clients: usize,
    connections: Connections,
    release: Release,
    /// Without the warm-up.
    duration: Duration,
    scratch_dir: PathBuf,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|number| Duration::try_from_secs_f64(number).ok());
    let range = Duration::from_millis(50)..=Duration::from_secs(3_600);
    time.filter(|time| range.contains(time)).ok_or_else(|| "expected a number from 0.05 to 3600".to_owned())
}

impl Bench {
    pub(crate) fn output(&self) -> Output {
        self.output
    }

    pub(crate) fn run(self) -> Result<u8, Failure> {
        let default = contender::default_recipe(&self.engine);
        let options = Options {
            recipe: self.recipe.unwrap_or(default),
            engine: self.engine,
            workload: self.workload,
            clients: self.clients.into(),
            connections: self.connections,
            release: self.release,
            duration: self.seconds,
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
        let report = block_on(async { measure(&options, show).await.map_err(Failure::from) })?;
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

/// Runs the benchmark. `progress` gets the elapsed time and the pairs so far, about once a second.
async fn measure(options: &Options, progress: impl FnMut(Duration, u64)) -> Result<Report, BenchError> {
    let limits = MachineLimits::measure(&options.scratch_dir)?;
    let contenders = contender::connect(options).await?;
    let times = measure::Times {
        warm_up: WARM_UP_MAX.min(options.duration),
        duration: options.duration,
        drain_max: DRAIN_MAX,
    };
    let measured = measure::run(contenders, options.workload, options.release, times, progress).await?;
    Ok(Report::new(options, limits, &measured))
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        match error {
            BenchError::Engine(error) => Failure::from(error),
            BenchError::Usage(why) => Failure::usage(why),
            other => Failure::other(other.to_string()),
        }
    }
}
