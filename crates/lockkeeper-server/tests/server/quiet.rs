//! A cell without requests: cell time advances in the log while some state depends on it (S2), and not otherwise.

use std::time::{Duration, Instant};

use lockkeeper_core::{Acquire, Command, Locks};
use lockkeeper_server::{Node, NodeConfig};

const LONG: Duration = Duration::from_secs(60);

async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(thing) = look() {
            return thing;
        }
        assert!(began.elapsed() < LONG, "waited {LONG:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn ready(node: &Node) {
    until("the node to lead", || node.api().ready().ok()).await;
}

/// Waits until cell time has advanced by `ms`. Returns the number of new log entries, and by how much it has advanced.
async fn entries_in(node: &Node, ms: u64) -> (u64, u64) {
    let before = node.api().status();
    until("cell time to advance", || {
        (node.api().status().cell_time_ms >= before.cell_time_ms + ms).then_some(())
    })
    .await;
    let after = node.api().status();
    (after.last_log_index - before.last_log_index, after.cell_time_ms - before.cell_time_ms)
}

fn held_ms(node: &Node) -> Option<u64> {
    let view = node.api().lock("kept").ok()?;
    view.holders.first().map(|holder| holder.held.as_millis() as u64)
}

#[tokio::test(flavor = "current_thread")]
async fn quiet_cell_keeps_its_time_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let config = || NodeConfig::durable(folder.path());
    let node = Node::open(config()).await.unwrap();
    ready(&node).await;
    let (session, _) = node.api().open_session(3_600_000, "test".into()).await.unwrap();
    node.api().acquire(Acquire::new(session, Locks::One("kept".into()))).await.unwrap();
    let (entries, ms) = entries_in(&node, 3_500).await;
    // At most one entry each second, and none of them late by more than half a second, even on a busy machine.
    assert!((ms / 1_500..=ms / 1_000 + 1).contains(&entries), "{entries} entries in {ms} ms");
    let before = until("a holder", || held_ms(&node)).await;
    assert!(before >= 3_500, "held for {before} ms");
    node.stop().await;

    let node = Node::open(config()).await.unwrap();
    ready(&node).await;
    let after = until("a holder", || held_ms(&node)).await;
    assert!(after + 1_000 >= before, "held for {before} ms before, for {after} ms after the restart");

    node.api().command(Command::CloseSession { session }).await.unwrap();
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn quiet_cell_without_time_dependent_state_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::open(NodeConfig::durable(folder.path())).await.unwrap();
    ready(&node).await;
    let put = |value: &'static [u8]| Command::PutValue {
        key: "k".into(),
        value: value.into(),
        fence: None,
        if_version: None,
    };
    node.api().command(put(b"v")).await.unwrap();
    assert_eq!(entries_in(&node, 2_500).await.0, 0, "nothing depends on time");
    let (session, _) = node.api().open_session(3_600_000, "test".into()).await.unwrap();
    assert!(entries_in(&node, 2_500).await.0 >= 1, "the age of a session does");
    node.api().command(Command::CloseSession { session }).await.unwrap();
    assert_eq!(entries_in(&node, 2_500).await.0, 0, "nothing depends on time again");
    node.stop().await;
}
