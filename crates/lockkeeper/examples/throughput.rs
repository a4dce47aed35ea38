//! Measures how many pairs of acquire and release one keeper completes per second.
//!
//! `cargo run --release -p lockkeeper --features embedded --example throughput [URL] [TASKS] [SECONDS]`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::prelude::*;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "embedded:".to_owned());
    let tasks: usize = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(256);
    let seconds: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(3);

    let keeper = Keeper::connect(&url).await?;
    let (pairs, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut work = tokio::task::JoinSet::new();
    let started = Instant::now();
    for task in 0..tasks {
        let (lock, pairs, stop) = (keeper.lock(format!("bench/{task}")), pairs.clone(), stop.clone());
        work.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                lock.acquire().await?.release().await?;
                pairs.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, Error>(())
        });
    }
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    stop.store(true, Ordering::Relaxed);
    while let Some(result) = work.join_next().await {
        result.expect("a task panicked")?;
    }
    let pairs = pairs.load(Ordering::Relaxed);
    let elapsed = started.elapsed();
    println!("{tasks} tasks, {url}: {:.0} pairs/s", pairs as f64 / elapsed.as_secs_f64());
    keeper.close().await
}
