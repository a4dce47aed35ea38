//! The measurement: clients that acquire and release for a while.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hdrhistogram::Histogram;

use super::contender::{BenchError, Contender};
use super::{Release, Workload};

/// Durations of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// Warm-up, which is not counted.
    pub(super) warm_up: Duration,
    /// Time in which pairs are counted.
    pub(super) duration: Duration,
    /// Time limit for acquires that are still pending afterwards.
    pub(super) drain_max: Duration,
}

/// Result of a measurement.
pub(super) struct Measured {
    pub(super) took: Duration,
    pub(super) pairs: u64,
    /// Latencies of acquires in nanoseconds.
    pub(super) latencies: Histogram<u64>,
}

struct Shared {
    counting: AtomicBool,
    stopping: AtomicBool,
    pairs: AtomicU64,
    latencies: Mutex<Histogram<u64>>,
}

/// Runs of this process. The number makes the lock names of a run unique.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// Runs the clients. Fails with the first error of any of them.
pub(super) async fn run(
    contenders: Vec<Contender>,
    workload: Workload,
    release: Release,
    times: Times,
    mut progress: impl FnMut(Duration, u64),
) -> Result<Measured, BenchError> {
    let shared = Arc::new(Shared {
        counting: AtomicBool::new(false),
        stopping: AtomicBool::new(false),
        pairs: AtomicU64::new(0),
        latencies: Mutex::new(new_histogram()?),
    });
    let run_id = format!("{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    let mut clients = tokio::task::JoinSet::new();
    for (number, contender) in contenders.into_iter().enumerate() {
        let lock = match workload {
            Workload::Uncontended => format!("bench/{run_id}/{number}"),
            Workload::Handoff => format!("bench/{run_id}"),
        };
        clients.spawn(client(contender, lock, workload, release, shared.clone()));
    }

    tokio::time::sleep(times.warm_up).await;
    shared.counting.store(true, Ordering::Relaxed);
    let began = Instant::now();
    while began.elapsed() < times.duration {
        let left = times.duration.saturating_sub(began.elapsed());
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
        progress(began.elapsed(), shared.pairs.load(Ordering::Relaxed));
    }
    shared.counting.store(false, Ordering::Relaxed);
    let took = began.elapsed();
    shared.stopping.store(true, Ordering::Relaxed);

    let mut ended = Vec::new();
    let all = async {
        while let Some(one) = clients.join_next().await {
            ended.push(one??);
        }
        Ok::<(), BenchError>(())
    };
    // Clients that still wait by then are aborted. The counts are final already.
    if let Ok(result) = tokio::time::timeout(times.drain_max, all).await {
        result?;
    }
    clients.shutdown().await;
    // After all clients have ended: they may share a keeper, and closing it fails the requests of the others.
    let closing = join_all(ended.into_iter().map(Contender::close));
    let _ = tokio::time::timeout(times.drain_max, closing).await;
    let latencies = shared.latencies.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Measured { took, pairs: shared.pairs.load(Ordering::Relaxed), latencies })
}

fn new_histogram() -> Result<Histogram<u64>, BenchError> {
    // From 100 ns to two minutes, three significant digits.
    Histogram::new_with_bounds(100, 120_000_000_000, 3)
        .map_err(|error| BenchError::Histogram(error.to_string()))
}

async fn client(
    mut contender: Contender,
    lock: String,
    workload: Workload,
    release: Release,
    shared: Arc<Shared>,
) -> Result<Contender, BenchError> {
    while !shared.stopping.load(Ordering::Relaxed) {
        let started = Instant::now();
        let held = contender.acquire(&lock, workload == Workload::Handoff).await?;
        let waited = started.elapsed();
        match release {
            Release::Waited => contender.release(&lock, held).await?,
            Release::Dropped => contender.drop_held(&lock, held)?,
        }
        if shared.counting.load(Ordering::Relaxed) {
            shared.pairs.fetch_add(1, Ordering::Relaxed);
            let mut latencies = shared.latencies.lock().unwrap_or_else(PoisonError::into_inner);
            latencies.saturating_record(waited.as_nanos() as u64);
        }
    }
    Ok(contender)
}
