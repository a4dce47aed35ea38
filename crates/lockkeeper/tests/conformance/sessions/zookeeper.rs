//! ZooKeeper.

use std::time::Duration;

use lockkeeper::prelude::*;
use lockkeeper::{Event, GuardState, Loss};
use lockkeeper_testkit::wire::Wire;

use super::shared::{self, soon};
use crate::servers::Site;
use crate::servers::zookeeper::Zookeeper;

#[tokio::test]
async fn the_same_lock_as_everywhere() {
    shared::all::<Zookeeper>().await;
}

#[tokio::test]
async fn first_come_first_served_alone_shared_and_counted() {
    shared::fifo::<Zookeeper>().await;
}

#[tokio::test]
async fn a_holder_that_is_cut_off_is_told_before_the_next_is_let_in() {
    shared::cut_and_healed::<Zookeeper>(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_guard_and_a_waiter_survive_a_restart_of_the_server() {
    shared::restarted::<Zookeeper>(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn nobody_there_and_somebody_else_there() {
    shared::absent_or_wrong("zookeeper").await;
}

/// SUSPENDED is jeopardy, long before the deadline; RECONNECTED ends it.
#[tokio::test]
async fn a_suspended_session_is_in_jeopardy_until_it_is_connected_again() {
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
    // Nobody else can be let in before the deadline: the work goes on.
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
async fn rights_are_asked_for_in_plain_words() {
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
async fn each_chroot_has_locks_of_its_own() {
    let site = Zookeeper::start();
    let one = Keeper::connect(&format!("zookeeper://{}/one", site.address)).await.unwrap();
    let two = Keeper::connect(&format!("zookeeper://{}/two/deep", site.address)).await.unwrap();
    let held = soon(one.lock("a").acquire()).await.unwrap();
    soon(two.lock("a").no_wait().acquire()).await.unwrap().release().await.unwrap();
    held.release().await.unwrap();
}

/// Netflix/curator#307: the node of a lock goes when nobody needs it.
#[tokio::test]
async fn the_names_of_locks_leave_no_nodes_behind() {
    let site = Zookeeper::start();
    let keeper = Keeper::connect(&site.url()).await.unwrap();
    for number in 0..20 {
        soon(keeper.lock(format!("name/{number}")).acquire()).await.unwrap().release().await.unwrap();
    }
    let nodes = || {
        let text = site.command("srvr");
        text.lines().find_map(|line| line.strip_prefix("Node count: ")?.trim().parse::<u32>().ok()).unwrap()
    };
    // Its own, and the three above the locks.
    shared::until("no node of a lock is left", async || nodes() <= 8).await;
    assert_eq!(keeper.examine().await.unwrap()[0].code, "single-node");
}
