//! A leader and a fenced write: the leader that was replaced finds its writes refused, whatever it believes.
//!
//! ```sh
//! cargo run -p lockkeeper --features embedded --example leader
//! ```
//! With a cell instead of the lock table in this process: add its URL, such as `lockkeeper://127.0.0.1:7420`.

use lockkeeper::prelude::*;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "embedded:".to_owned());
    let one = Keeper::builder().owner("node-1").connect(&url).await?;
    let two = Keeper::builder().owner("node-2").connect(&url).await?;
    let mut observer = two.election("scheduler").observe();
    observer.next().await?;

    let first = one.election("scheduler").value("10.0.0.1:8080").campaign().await?;
    if let Some(leader) = observer.next().await? {
        println!("{} leads in epoch {}", leader.value, leader.epoch);
    }
    one.value("scheduler/next-run").fence(first.guard()).put("03:00").await?;

    // The second one stands by. An operator, or a lost lease, takes the office from the first.
    let standby = two.election("scheduler").value("10.0.0.2:8080");
    let waiting = tokio::spawn(async move { standby.campaign().await });
    while two.who("election/scheduler").await?.waiting == 0 {
        tokio::task::yield_now().await;
    }
    two.force_release("election/scheduler", "node-1 does not answer").await?;
    let second = match waiting.await {
        Ok(second) => second?,
        Err(error) => panic!("the campaign ended: {error}"),
    };
    println!("10.0.0.2:8080 leads in epoch {}", second.epoch());
    println!("the first one is told: {}", first.lost().await);

    // It writes all the same, as a process does that was paused.
    let late =
        one.value("scheduler/next-run").fence_with("election/scheduler", first.epoch()).put("04:00").await;
    match late {
        Err(Error::StaleToken { last_token }) => {
            println!("its write is refused: epoch {} is stale, {last_token} leads", first.epoch());
        }
        other => panic!("a stale leader wrote: {other:?}"),
    }
    two.value("scheduler/next-run").fence(second.guard()).put("05:00").await?;
    second.resign().await
}
