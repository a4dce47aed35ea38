//! etcd.

use std::time::Duration;

use lockkeeper::prelude::*;
use lockkeeper::{GuardState, Loss};

use super::shared::{self, until_queue};
use crate::servers::Site;
use crate::servers::etcd::Etcd;
use crate::support::soon;

#[tokio::test]
async fn every_operation_leaves_nothing_behind() {
    shared::operations_leave_nothing_behind::<Etcd>().await;
}

#[tokio::test]
async fn queue_is_fifo_in_all_modes() {
    shared::fifo::<Etcd>().await;
}

#[tokio::test]
async fn partitioned_holder_detects_the_loss_before_the_lock_is_granted_again() {
    shared::partition::<Etcd>(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn guard_and_waiter_survive_a_restart_of_the_server() {
    shared::restart::<Etcd>(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn connect_error_names_an_unreachable_or_wrong_server() {
    shared::connect_errors("etcd").await;
}

/// The lease of a waiter expires before the lock is free (etcd-io/etcd#11456).
#[tokio::test]
async fn waiter_with_an_expired_lease_gets_the_lock_with_a_new_one() {
    let site = Etcd::start();
    let holder = shared::connect::<Etcd>(&site.url(), "holder").await;
    let waiter = Keeper::builder().ttl(30.secs()).connect(&site.url()).await.unwrap();
    let held = soon(holder.lock("a").acquire()).await.unwrap();
    let waiting = tokio::spawn({
        let lock = waiter.lock("a");
        async move { lock.acquire().await.unwrap() }
    });
    until_queue(&holder, "a", 1, 1).await;
    let expired = waiter.session_ids().await.unwrap().remove(0);
    let id = u64::from_str_radix(&expired, 16).unwrap();
    site.post("/v3/lease/revoke", &format!(r#"{{"ID": "{id}"}}"#));
    until_queue(&holder, "a", 1, 0).await;
    held.release().await.unwrap();
    let guard = soon(waiting).await.unwrap();
    let state = holder.who("a").await.unwrap();
    assert_eq!(state.holders[0].token, guard.token().0);
    assert_ne!(state.holders[0].session, expired);
    assert_eq!(guard.state(), GuardState::Held);
}

#[tokio::test]
async fn loss_of_a_lease_ends_all_its_guards() {
    let site = Etcd::start();
    let keeper = Keeper::builder().ttl(3.secs()).connect(&site.url()).await.unwrap();
    let guards =
        (soon(keeper.lock("a").acquire()).await.unwrap(), soon(keeper.lock("b").acquire()).await.unwrap());
    let id = u64::from_str_radix(&keeper.session_ids().await.unwrap()[0], 16).unwrap();
    site.post("/v3/lease/revoke", &format!(r#"{{"ID": "{id}"}}"#));
    assert_eq!(soon(guards.0.lost()).await, Loss::SessionExpired);
    assert_eq!(soon(guards.1.lost()).await, Loss::SessionExpired);
    assert_eq!(guards.0.release().await.unwrap_err().code(), "session_lost");
    // The keeper continues with a new lease.
    soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn missing_or_wrong_password_is_reported() {
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
    assert!(!error.to_string().contains("wrong@"), "the error contains the password: {error}");
    let keeper = Keeper::connect(&format!("etcd://root:secret@{}", site.address)).await.unwrap();
    soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn doctor_reports_a_single_member() {
    let site = Etcd::start();
    let keeper = Keeper::connect(&site.url()).await.unwrap();
    assert_eq!(keeper.examine().await.unwrap()[0].code, "single-node");
}
