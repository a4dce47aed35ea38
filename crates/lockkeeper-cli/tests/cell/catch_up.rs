//! A node returns after a long downtime and catches up while the cell serves.

use std::time::Instant;

use crate::harness::cell::Cell;
use crate::harness::client::Load;
use crate::harness::until;

/// Number of entries that the node misses. For a million: LOCKKEEPER_ENTRIES_BEHIND=1000000 cargo test --release -p lockkeeper-cli
/// --all-features --test cell catch_up -- --nocapture
fn entries() -> u64 {
    let configured = std::env::var("LOCKKEEPER_ENTRIES_BEHIND").ok();
    configured.map_or(1_500, |number| number.parse().expect("LOCKKEEPER_ENTRIES_BEHIND is a number"))
}

async fn applied(cell: &Cell, id: u64) -> u64 {
    let status = until("the status", async || cell.node(id).status().await).await;
    status["applied_index"].as_u64().expect("an index")
}

#[tokio::test]
async fn node_catches_up_after_a_long_downtime_while_the_cell_serves() {
    let mut cell = Cell::start(3).await;
    let leader = cell.leader().await;
    let behind = cell.others(leader)[0];
    let mut load = Load::start(&cell, 16).await;
    cell.kill(behind);
    let (began, first) = (Instant::now(), applied(&cell, leader).await);
    let goal = first + entries();
    while applied(&cell, cell.leader().await).await < goal {
        load.until_more(500).await;
    }
    let leader = cell.leader().await;
    let missed = applied(&cell, leader).await - first;
    println!("the node missed {missed} entries in {:.1} s", began.elapsed().as_secs_f64());

    cell.spawn(behind);
    let (back, before) = (Instant::now(), load.done());
    // The longest time without a grant while the node catches up.
    let (mut last, mut longest) = ((Instant::now(), before), std::time::Duration::ZERO);
    until("the node to catch up", async || {
        let done = load.done();
        if done != last.1 {
            last = (Instant::now(), done);
        }
        longest = longest.max(last.0.elapsed());
        let status = cell.node(leader).status().await?;
        let member = status["members"].as_array()?.iter().find(|member| member["node_id"] == behind)?.clone();
        (member["lag"].as_u64()? < 200).then_some(())
    })
    .await;
    println!(
        "the node caught up in {:.2} s; {} pairs meanwhile, longest pause between two {} ms",
        back.elapsed().as_secs_f64(),
        load.done() - before,
        longest.as_millis()
    );
    load.until_more(100).await;
    load.end().await;
    cell.until_in_sync(&[1, 2, 3]).await;
}
