//! Leader election with fenced writes: the writes of a replaced leader are refused, even before it notices.
//!
//! ```sh
//! cargo run -p lockkeeper --features embedded --example leader
//! ```
//! To use a cell instead of the lock table in this process, add its URL, such as `lockkeeper://127.0.0.1:7420`.

use lockkeeper::Election;
use lockkeeper::prelude::*;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "embedded:".to_owned());
    let one = Keeper::builder().owner("node-1").connect(&url).await?;
    let two = Keeper::builder().owner("node-2").connect(&url).await?;
    let lock = Election::lock_of("scheduler");
    let mut observer = two.election("scheduler").observe();
    observer.next().await?;

    let first = one.election("scheduler").value("10.0.0.1:8080").campaign().await?;
    if let Some(leader) = observer.next().await? {
        println!("{} leads in epoch {}", leader.value, leader.epoch);
    }
    one.value("scheduler/next-run").fence(first.guard()).put("03:00").await?;

    // The second node stands by. An operator, or an expired lease, ends the leadership of the first.
    let standby = two.election("scheduler").value("10.0.0.2:8080");
    let waiting = tokio::spawn(async move { standby.campaign().await });
    while two.who(&lock).await?.waiting == 0 {
        tokio::task::yield_now().await;
    }
    two.force_release(&lock, "node-1 does not answer").await?;
    let second = match waiting.await {
        Ok(second) => second?,
        Err(error) => panic!("the campaign failed: {error}"),
    };
    println!("10.0.0.2:8080 leads in epoch {}", second.epoch());
    println!("the first node lost its leadership: {}", first.lost().await);

    // It writes anyway, like a process that was paused.
    let late = one.value("scheduler/next-run").fence_with(&lock, first.epoch()).put("04:00").await;
    match late {
        Err(Error::StaleToken { last_token }) => {
            println!("its write is refused: epoch {} is stale, {last_token} leads", first.epoch());
        }
        other => panic!("a stale leader wrote: {other:?}"),
    }
    two.value("scheduler/next-run").fence(second.guard()).put("05:00").await?;
    second.resign().await
}
