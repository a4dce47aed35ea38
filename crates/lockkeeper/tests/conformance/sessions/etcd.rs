//! etcd.

use std::time::Duration;

use lockkeeper::prelude::*;
use lockkeeper::{GuardState, Loss};

use super::shared::{self, soon, until_queue};
use crate::servers::Site;
use crate::servers::etcd::Etcd;

#[tokio::test]
async fn the_same_lock_as_everywhere() {
    shared::all::<Etcd>().await;
}

#[tokio::test]
async fn first_come_first_served_alone_shared_and_counted() {
    shared::fifo::<Etcd>().await;
}

#[tokio::test]
async fn a_holder_that_is_cut_off_is_told_before_the_next_is_let_in() {
    shared::cut_and_healed::<Etcd>(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_guard_and_a_waiter_survive_a_restart_of_the_server() {
    shared::restarted::<Etcd>(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn nobody_there_and_somebody_else_there() {
    shared::absent_or_wrong("etcd").await;
}

/// etcd-io/etcd#11456: the lease of a waiter dies, then its turn comes.
#[tokio::test]
async fn a_waiter_whose_lease_has_died_is_not_let_in_on_it() {
    let site = Etcd::start();
    let holder = shared::connect::<Etcd>(&site.url(), "holder").await;
    let waiter = Keeper::builder().ttl(30.secs()).connect(&site.url()).await.unwrap();
    let held = soon(holder.lock("a").acquire()).await.unwrap();
    let waiting = tokio::spawn({
        let lock = waiter.lock("a");
        async move { lock.acquire().await.unwrap() }
    });
    until_queue(&holder, "a", 1, 1).await;
    let dead = waiter.session_ids().await.unwrap().remove(0);
    let id = u64::from_str_radix(&dead, 16).unwrap();
    site.post("/v3/lease/revoke", &format!(r#"{{"ID": "{id}"}}"#));
    until_queue(&holder, "a", 1, 0).await;
    held.release().await.unwrap();
    let guard = soon(waiting).await.unwrap();
    let state = holder.who("a").await.unwrap();
    assert_eq!(state.holders[0].token, guard.token().0);
    assert_ne!(state.holders[0].session, dead);
    assert_eq!(guard.state(), GuardState::Held);
}

#[tokio::test]
async fn the_loss_of_a_lease_ends_all_its_guards() {
    let site = Etcd::start();
    let keeper = Keeper::builder().ttl(3.secs()).connect(&site.url()).await.unwrap();
    let guards =
        (soon(keeper.lock("a").acquire()).await.unwrap(), soon(keeper.lock("b").acquire()).await.unwrap());
    let id = u64::from_str_radix(&keeper.session_ids().await.unwrap()[0], 16).unwrap();
    site.post("/v3/lease/revoke", &format!(r#"{{"ID": "{id}"}}"#));
    assert_eq!(soon(guards.0.lost()).await, Loss::SessionExpired);
    assert_eq!(soon(guards.1.lost()).await, Loss::SessionExpired);
    assert_eq!(guards.0.release().await.unwrap_err().code(), "session_lost");
    // The keeper goes on with a new one.
    soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_password_is_asked_for_in_plain_words() {
    let site = Etcd::start();
    site.post("/v3/auth/user/add", r#"{"name": "root", "password": "secret"}"#);
    site.post("/v3/auth/role/add", r#"{"name": "root"}"#);
    site.post("/v3/auth/user/grant", r#"{"user": "root", "role": "root"}"#);
    site.post("/v3/auth/enable", "{}");
    let error = Keeper::connect(&site.url()).await.unwrap_err();
    assert_eq!(error.code(), "unauthenticated", "{error}");
    assert!(error.to_string().contains("etcd://user:password@"), "{error}");
    let error = Keeper::connect(&format!("etcd://root:wrong@{}", site.address)).await.unwrap_err();
    assert_eq!(error.code(), "unauthenticated", "{error}");
    assert!(!error.to_string().contains("wrong@"), "no password in texts: {error}");
    let keeper = Keeper::connect(&format!("etcd://root:secret@{}", site.address)).await.unwrap();
    soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn one_member_is_found_to_be_few() {
    let site = Etcd::start();
    let keeper = Keeper::connect(&site.url()).await.unwrap();
    assert_eq!(keeper.examine().await.unwrap()[0].code, "single-node");
}
