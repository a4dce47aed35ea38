//! A full disk while thousands of locks are held: the reserved space is enough to release each, or to end each session.

use std::sync::Arc;

use lockkeeper_core::{Acquire, Command, Grant, Locks, Reply, SessionId};
use lockkeeper_server::raft::log::{Faults, FaultyDisk};
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

#[tokio::test(flavor = "current_thread")]
async fn every_held_lock_can_be_released_or_expires_on_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new();
    let node = Node::open(NodeConfig {
        log_disk: Some(Arc::new(disk.clone())),
        ..NodeConfig::durable(folder.path())
    })
    .await
    .unwrap();
    until("the node to lead", async || node.api().ready().ok()).await;
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

    disk.set_faults(Faults { capacity_bytes: Some(0), ..Faults::default() });
    let mut number = 0_usize;
    while put(&node, &format!("k{}", number % 10), VALUE_BYTES).await {
        number += 1;
        if number.is_multiple_of(RENEW_EVERY) {
            renew(&node, &expiring);
        }
    }
    println!("{number} values until the disk was full, {} locks held", locks_held(&node));
    for (number, grant) in grants.into_iter().enumerate() {
        let lock = format!("released/{number}").into();
        let release = Command::Release { session: holder, lock, token: grant.token, forget: false };
        assert_eq!(node.api().command(release).await, Ok(Reply::Done), "release {number}");
        assert!(!put(&node, "k", 1).await, "the disk is still full");
    }
    until("all other sessions to expire", async || (locks_held(&node) == 0).then_some(())).await;
    disk.set_faults(Faults::default());
    until("full service", async || put(&node, "k", 1).await.then_some(())).await;
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
