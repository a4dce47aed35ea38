//! A full disk while thousands of locks are held: the reserved space is enough to release each, or to end each session, and
//! nothing else uses it up.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use lockkeeper_api::Code;
use lockkeeper_core::{Acquire, Command, Grant, Locks, Refusal, Reply, SessionId, Token, Waiting};
use lockkeeper_server::failure::Failure;
use lockkeeper_server::raft::log::{Disk, Faults, FaultyDisk};
use lockkeeper_server::{Node, NodeConfig};

use crate::support::{put, until};

/// Locks that are released one after the other, each in an entry of its own.
const RELEASED: usize = 3_000;
/// Locks of sessions that expire.
const EXPIRING: usize = 3_000;
const TTL_MS: u64 = 600_000;
/// Long enough to fill the disk; the sessions are renewed meanwhile.
const SHORT_TTL_MS: u64 = 10_000;
const RENEW_EVERY: usize = 100;
const VALUE_BYTES: usize = 60_000;

async fn acquire(node: &Node, session: SessionId, lock: String) -> Grant {
    node.api().acquire(Acquire::new(session, Locks::One(lock.into()))).await.expect("a grant")
}

fn locks_held(node: &Node) -> u64 {
    node.api().status().locks_held
}

/// Starts a node on this disk and waits until it leads.
async fn start(folder: &std::path::Path, disk: &FaultyDisk) -> Node {
    let log_disk: Option<Arc<dyn Disk>> = Some(Arc::new(disk.clone()));
    let node = Node::open(NodeConfig { log_disk, ..NodeConfig::durable(folder) }).await.unwrap();
    until("the node to lead", async || node.api().ready().ok()).await;
    node
}

fn fill(disk: &FaultyDisk) {
    disk.set_faults(Faults { capacity_bytes: Some(0), ..Faults::default() });
}

/// Writes values until new work is refused.
async fn write_until_refused(node: &Node) {
    let mut number = 0_usize;
    while put(node, &format!("k{}", number % 10), VALUE_BYTES).await {
        number += 1;
    }
    println!("{number} values until the disk was full, {} locks held", locks_held(node));
}

/// Returns a release that frees nothing.
fn useless_release(session: SessionId) -> Command {
    Command::Release { session, lock: "never-held".into(), token: Token(1), forget: false }
}

#[tokio::test(flavor = "current_thread")]
async fn every_held_lock_can_be_released_or_expires_on_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new();
    let node = start(folder.path(), &disk).await;
    let (holder, _) = node.api().open_session(TTL_MS, "holder".into()).await.unwrap();
    let mut grants = Vec::new();
    for number in 0..RELEASED {
        grants.push(acquire(&node, holder, format!("released/{number}")).await);
    }
    let mut expiring = Vec::new();
    for number in 0..EXPIRING {
        let (session, _) = node.api().open_session(SHORT_TTL_MS, "dies".into()).await.unwrap();
        acquire(&node, session, format!("expires/{number}")).await;
        expiring.push(session);
        if number.is_multiple_of(RENEW_EVERY) {
            renew(&node, &expiring);
        }
    }

    fill(&disk);
    let mut number = 0_usize;
    while put(&node, &format!("k{}", number % 10), VALUE_BYTES).await {
        number += 1;
        if number.is_multiple_of(RENEW_EVERY) {
            renew(&node, &expiring);
        }
    }
    println!("{number} values until the disk was full, {} locks held", locks_held(&node));
    assert!(!put(&node, "k", 1).await, "the disk is still full");
    for (number, grant) in grants.into_iter().enumerate() {
        let lock = format!("released/{number}").into();
        let release = Command::Release { session: holder, lock, token: grant.token, forget: false };
        assert_eq!(node.api().command(release).await, Ok(Reply::Done), "release {number}");
    }
    until("all other sessions to expire", async || (locks_held(&node) == 0).then_some(())).await;
    disk.set_faults(Faults::default());
    until("full service", async || put(&node, "k", 1).await.then_some(())).await;
    node.stop().await;
}

/// A release with a long name takes two sectors of the log, and each is in an entry of its own.
#[tokio::test(flavor = "current_thread")]
async fn twelve_thousand_locks_with_long_names_can_be_released_one_by_one_on_a_full_disk() {
    const HELD: usize = 12_000;
    /// Acquires at once. They share entries.
    const CONCURRENT: usize = 500;
    let name = |number: usize| format!("{number:0>500}");
    let folder = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new();
    let node = start(folder.path(), &disk).await;
    let (holder, _) = node.api().open_session(TTL_MS, "holder".into()).await.unwrap();
    let grants = stream::iter(0..HELD).map(|number| acquire(&node, holder, name(number)));
    let grants: Vec<Grant> = grants.buffered(CONCURRENT).collect().await;
    fill(&disk);
    write_until_refused(&node).await;
    let before = node.api().status().last_log_index;
    for (number, grant) in grants.into_iter().enumerate() {
        let lock = name(number).into();
        let release = Command::Release { session: holder, lock, token: grant.token, forget: false };
        assert_eq!(node.api().command(release).await, Ok(Reply::Done), "release {number}");
    }
    assert_eq!(locks_held(&node), 0);
    let entries = node.api().status().last_log_index - before;
    assert!(entries >= HELD as u64, "{HELD} releases in {entries} entries: they were not alone");
    node.api().command(Command::CloseSession { session: holder }).await.expect("the session can be closed");
    disk.set_faults(Faults::default());
    until("full service", async || put(&node, "k", 1).await.then_some(())).await;
    node.stop().await;
}

/// Neither time nor commands without effect use up the space that is reserved for releases.
#[tokio::test(flavor = "current_thread")]
async fn nothing_without_effect_is_logged_while_the_disk_is_full() {
    /// Cell time is otherwise logged about once a second.
    const CELL_MS: u64 = 4_000;
    let folder = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new();
    let node = start(folder.path(), &disk).await;
    let api = node.api();
    let (holder, _) = api.open_session(TTL_MS, "holder".into()).await.unwrap();
    let grant = acquire(&node, holder, "held".to_owned()).await;
    fill(&disk);
    write_until_refused(&node).await;
    // An entry that was on its way may still arrive.
    let before = until("a quiet log", async || {
        let before = api.status();
        until("cell time to advance", async || {
            (api.status().cell_time_ms >= before.cell_time_ms + CELL_MS).then_some(())
        })
        .await;
        (api.status().last_log_index == before.last_log_index).then_some(before)
    })
    .await;

    let not_held = Failure::Refused(Refusal::NotHeld { lock: "never-held".into(), token: Token(1) });
    let stranger = Command::CloseSession { session: SessionId(77) };
    let nothing_waits =
        Command::Cancel { session: holder, what: Waiting::Ticket(lockkeeper_core::Ticket(9)) };
    for _ in 0..100 {
        assert_eq!(api.command(useless_release(holder)).await, Err(not_held.clone()));
        assert_eq!(api.command(stranger.clone()).await, Err(Failure::Refused(Refusal::SessionLost)));
        assert_eq!(api.command(nothing_waits.clone()).await, Ok(Reply::Done));
    }
    assert_eq!(api.status().last_log_index, before.last_log_index, "nor do commands without effect");

    // Commands that only change something have a bounded part of the space.
    let mut changes = 0;
    loop {
        let what = Waiting::Request(format!("unknown-{changes}").into());
        match api.command(Command::Cancel { session: holder, what }).await {
            Ok(_) => changes += 1,
            Err(failure) => break assert_eq!(failure.code(), Code::Unavailable, "{failure}"),
        }
    }
    println!("{changes} cancels of unknown requests were logged");
    let release =
        Command::Release { session: holder, lock: "held".into(), token: grant.token, forget: false };
    assert_eq!(api.command(release).await, Ok(Reply::Done));
    disk.set_faults(Faults::default());
    until("full service", async || put(&node, "k", 1).await.then_some(())).await;
    // With space, the table answers.
    let before = api.status().last_log_index;
    assert_eq!(api.command(useless_release(holder)).await, Err(not_held));
    assert!(api.status().last_log_index > before);
    node.stop().await;
}

fn renew(node: &Node, sessions: &[SessionId]) {
    for session in sessions {
        assert!(
            matches!(node.api().keep_alive(*session), Ok(Some(_))),
            "a session has expired during the setup"
        );
    }
}
