//! `lockkeeper bench`: how many locks a second, and how long one takes.
//!
//! A figure alone says little, so each run also measures what the machine itself can do at best: one append
//! with fdatasync, and one round trip over loopback.

pub mod compare;
mod contender;
mod limits;
mod link;
mod measure;
mod redis;
mod report;

use std::time::Duration;

pub use contender::BenchError;
pub use limits::MachineLimits;
pub use link::Link;
pub use report::Report;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Every client takes and gives back a lock of its own.
    Uncontended,
    /// All clients queue for one lock.
    Handoff,
}

impl Workload {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Uncontended => "uncontended",
            Workload::Handoff => "handoff",
        }
    }
}

/// How the clients reach the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connections {
    /// All over one.
    Shared,
    /// Each over its own.
    Each,
}

/// How a lock is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// The client waits until it is free.
    Waited,
    /// The guard is dropped, as most are in Rust: it is given back beside whatever the client does next.
    Dropped,
}

impl Release {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Release::Waited => "waited",
            Release::Dropped => "dropped",
        }
    }
}

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the locks are. `redis://` is the bare recipe (SET NX PX, compare-and-delete script) as a yardstick.
    pub engine: String,
    /// What is done.
    pub workload: Workload,
    /// How many clients.
    pub clients: usize,
    /// How they connect.
    pub connections: Connections,
    /// How they give back.
    pub release: Release,
    /// How long, after the warm-up.
    pub duration: Duration,
    /// Where the append and fdatasync of the machine's own limits go: the disk that the node uses.
    pub scratch_dir: std::path::PathBuf,
}

/// Before the measurement.
const WARM_UP: Duration = Duration::from_millis(500);
/// What the last acquires of a run may take: with one lock for all, each client gets its turn.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the benchmark. `progress` is told the pairs so far, about once a second.
pub async fn run(options: &Options, progress: impl FnMut(Duration, u64)) -> Result<Report, BenchError> {
    let limits = MachineLimits::measure(&options.scratch_dir)?;
    let contenders = contender::connect(options).await?;
    let times = measure::Times { warm_up: WARM_UP, duration: options.duration, patience: PATIENCE };
    let measured = measure::run(contenders, options.workload, options.release, times, progress).await?;
    Ok(Report::new(options, limits, &measured))
}
