//! Cron on many hosts: all hosts start at the same time, one of them does the work, the others get its result.
//!
//! ```sh
//! cargo run -p lockkeeper --features embedded --example cron
//! ```
//! To run a command instead, without code: `lockkeeper run cleanup --once-per 1h -- ./cleanup.sh`.

use std::time::Duration;

use lockkeeper::prelude::*;
use tokio::task::JoinSet;

/// The work: once for each slot, on one host.
async fn clean_up(host: &str) -> Result<String, Error> {
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("{host} does the work");
    Ok(format!("17 files removed by {host}"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "embedded:".to_owned());
    let slot = "cleanup/2026-11-16T03:00";
    let mut hosts = JoinSet::new();
    for number in 1..=5 {
        let url = url.clone();
        hosts.spawn(async move {
            let host = format!("host-{number}");
            let keeper = Keeper::builder().owner(host.as_str()).connect(&url).await?;
            let result = keeper.once(slot).run(|_token| clean_up(&host)).await??;
            Ok::<_, Error>((host, result))
        });
    }
    while let Some(ended) = hosts.join_next().await {
        match ended {
            Ok(outcome) => {
                let (host, result) = outcome?;
                println!("{host} got: {result}");
            }
            Err(error) => panic!("a host task failed: {error}"),
        }
    }
    Keeper::connect(&url).await?.once(slot).forget().await
}
