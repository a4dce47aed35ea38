//! `lockkeeper bench`: how many locks a second, and how long one takes.
//!
//! A figure alone says little, so each run also measures what the machine itself can do at best: one append
//! with fdatasync, and one round trip over loopback.

mod contender;
mod limits;
mod redis;
mod report;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use hdrhistogram::Histogram;

pub use contender::{BenchError, Contender};
pub use limits::MachineLimits;
pub use report::Report;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Every client takes and gives back a lock of its own.
    Uncontended,
    /// All clients queue for one lock.
    Handoff,
}

/// How the clients reach the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connections {
    /// All over one.
    Shared,
    /// Each over its own.
    Each,
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
    /// How long, after the warm-up.
    pub duration: Duration,
    /// Where the append and fdatasync of the machine's own limits go: the disk that the node uses.
    pub scratch_dir: std::path::PathBuf,
}

/// Before the measurement.
const WARM_UP: Duration = Duration::from_millis(500);

struct Shared {
    counting: AtomicBool,
    stopping: AtomicBool,
    pairs: AtomicU64,
}

/// Runs the benchmark. `progress` is told the pairs so far, about once a second.
pub async fn run(options: &Options, mut progress: impl FnMut(Duration, u64)) -> Result<Report, BenchError> {
    let limits = MachineLimits::measure(&options.scratch_dir)?;
    let contenders = contender::connect(options).await?;
    let shared = Arc::new(Shared {
        counting: AtomicBool::new(false),
        stopping: AtomicBool::new(false),
        pairs: AtomicU64::new(0),
    });
    let run_id = std::process::id();
    let clients: Vec<_> = contenders
        .into_iter()
        .enumerate()
        .map(|(number, contender)| {
            let lock = match options.workload {
                Workload::Uncontended => format!("bench/{run_id}/{number}"),
                Workload::Handoff => format!("bench/{run_id}"),
            };
            tokio::spawn(client(contender, lock, options.workload, shared.clone()))
        })
        .collect();

    tokio::time::sleep(WARM_UP).await;
    shared.counting.store(true, Ordering::Relaxed);
    let began = Instant::now();
    while began.elapsed() < options.duration {
        let left = options.duration.saturating_sub(began.elapsed());
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
        progress(began.elapsed(), shared.pairs.load(Ordering::Relaxed));
    }
    shared.counting.store(false, Ordering::Relaxed);
    let took = began.elapsed();
    shared.stopping.store(true, Ordering::Relaxed);

    let mut latencies = new_histogram()?;
    let mut ended = Vec::with_capacity(options.clients);
    for of_one in try_join_all(clients).await? {
        let (of_one, contender) = of_one?;
        latencies.add(of_one).map_err(|error| BenchError::Measure(error.to_string()))?;
        ended.push(contender);
    }
    // Only when all have ended: they may share a keeper, and closing it cuts off whoever still works.
    for contender in ended {
        contender.close().await;
    }
    Ok(Report::new(options, limits, took, shared.pairs.load(Ordering::Relaxed), &latencies))
}

fn new_histogram() -> Result<Histogram<u64>, BenchError> {
    // Nanoseconds up to two minutes, three digits.
    Histogram::new_with_bounds(100, 120_000_000_000, 3)
        .map_err(|error| BenchError::Measure(error.to_string()))
}

async fn client(
    mut contender: Contender,
    lock: String,
    workload: Workload,
    shared: Arc<Shared>,
) -> Result<(Histogram<u64>, Contender), BenchError> {
    let mut latencies = new_histogram()?;
    while !shared.stopping.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let held = contender.acquire(&lock, workload == Workload::Handoff).await?;
        let waited = asked.elapsed();
        contender.release(&lock, held).await?;
        if shared.counting.load(Ordering::Relaxed) {
            shared.pairs.fetch_add(1, Ordering::Relaxed);
            latencies.saturating_record(waited.as_nanos() as u64);
        }
    }
    Ok((latencies, contender))
}
