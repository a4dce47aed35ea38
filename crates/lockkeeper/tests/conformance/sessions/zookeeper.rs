//! ZooKeeper.

use std::time::Duration;

use lockkeeper::prelude::*;
use lockkeeper::{Event, GuardState, Loss};
use lockkeeper_testkit::wire::Wire;

use super::shared;
use crate::servers::Site;
use crate::servers::zookeeper::Zookeeper;
use crate::support::{soon, until};

#[tokio::test]
async fn every_operation_leaves_nothing_behind() {
    shared::operations_leave_nothing_behind::<Zookeeper>().await;
}

#[tokio::test]
async fn queue_is_fifo_in_all_modes() {
    shared::fifo::<Zookeeper>().await;
}

#[tokio::test]
async fn partitioned_holder_detects_the_loss_before_the_lock_is_granted_again() {
    shared::partition::<Zookeeper>(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn guard_and_waiter_survive_a_restart_of_the_server() {
    shared::restart::<Zookeeper>(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn connect_error_names_an_unreachable_or_wrong_server() {
    shared::connect_errors("zookeeper").await;
}

/// SUSPENDED causes jeopardy long before the deadline; RECONNECTED ends it.
#[tokio::test]
async fn suspended_session_is_in_jeopardy_until_it_reconnects() {
    let site = Zookeeper::start();
    let wire = Wire::to(site.address).unwrap();
    let keeper = Keeper::builder().ttl(10.secs()).connect(&site.url_at(&[wire.address])).await.unwrap();
    let guard = soon(keeper.lock("a").acquire()).await.unwrap();
    let mut events = keeper.events();
    let mut changes = guard.changes();
    let lease = guard.lease();
    let work = tokio::spawn(async move { lease.lost().await });
    assert_eq!(soon(changes.next()).await, Some(GuardState::Held));
    wire.sever();
    assert_eq!(soon(changes.next()).await, Some(GuardState::Jeopardy));
    while !matches!(soon(events.next()).await.unwrap(), Event::Jeopardy { .. }) {}
    let refused = guard.check().unwrap_err();
    assert!(matches!(refused, Error::Lost { why: Loss::Suspended, .. }), "{refused}");
    // The lock cannot be granted to another client before the deadline, so the work continues.
    assert!(!work.is_finished());
    wire.heal();
    assert_eq!(soon(changes.next()).await, Some(GuardState::Held));
    while !matches!(soon(events.next()).await.unwrap(), Event::Recovered { .. }) {}
    guard.check().unwrap();
    assert!(!work.is_finished());
    work.abort();
    soon(guard.release()).await.unwrap();
}

#[tokio::test]
async fn missing_permission_is_reported() {
    let site = Zookeeper::start();
    let url = |login: &str| format!("zookeeper://{login}{}/private", site.address);
    let keeper = Keeper::connect(&url("somebody:secret@")).await.unwrap();
    soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
    let error = Keeper::connect(&url("")).await.unwrap_err();
    assert_eq!(error.code(), "forbidden", "{error}");
    assert!(error.to_string().contains("zookeeper://user:password@"), "{error}");
    let error = Keeper::connect(&url("somebody:wrong@")).await.unwrap_err();
    assert_eq!(error.code(), "forbidden", "{error}");
}

#[tokio::test]
async fn each_chroot_has_its_own_locks() {
    let site = Zookeeper::start();
    let one = Keeper::connect(&format!("zookeeper://{}/one", site.address)).await.unwrap();
    let two = Keeper::connect(&format!("zookeeper://{}/two/deep", site.address)).await.unwrap();
    let held = soon(one.lock("a").acquire()).await.unwrap();
    soon(two.lock("a").no_wait().acquire()).await.unwrap().release().await.unwrap();
    held.release().await.unwrap();
}

/// The parent node of an unused lock is removed (Netflix/curator#307).
#[tokio::test]
async fn unused_locks_leave_no_nodes_behind() {
    let site = Zookeeper::start();
    let keeper = Keeper::connect(&site.url()).await.unwrap();
    for number in 0..20 {
        soon(keeper.lock(format!("name/{number}")).acquire()).await.unwrap().release().await.unwrap();
    }
    let nodes = || {
        let text = site.command("srvr");
        text.lines().find_map(|line| line.strip_prefix("Node count: ")?.trim().parse::<u32>().ok()).unwrap()
    };
    // ZooKeeper's own nodes, and the three above the locks.
    until("no node of a lock is left", async || nodes() <= 8).await;
    assert_eq!(keeper.examine().await.unwrap()[0].code, "single-node");
}
