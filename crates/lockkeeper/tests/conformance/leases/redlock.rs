//! Redlock, with instances that are stopped, killed or emptied. A stopped instance receives every request and answers too late.

use std::time::{Duration, Instant};

use lockkeeper::prelude::*;
use lockkeeper_testkit::Signal;
use lockkeeper_testkit::wire::Wire;

use crate::child::connect;
use crate::doctor::codes;
use crate::servers::Site;
use crate::servers::redis::Redis;
use crate::servers::redlock::Redlock;
use crate::support::soon;

/// Long enough that a slow instance on a busy machine does not count as a stopped one.
const INSTANCE_TIMEOUT: Duration = Duration::from_millis(2_500);

fn url(site: &Redlock) -> String {
    let hosts: Vec<String> = site.addresses().iter().map(ToString::to_string).collect();
    format!("redlock://{}?timeout_ms={}", hosts.join(","), INSTANCE_TIMEOUT.as_millis())
}

fn signal(instances: &[Redis], signal: Signal) {
    instances.iter().for_each(|instance| instance.signal(signal));
}

/// Waits until the lock is on no instance, for less than its time to live.
async fn until_released_everywhere(site: &Redlock, lock: &str) {
    let key = format!("lockkeeper:lock:{lock}");
    let until = Instant::now() + 15.secs();
    for (number, instance) in site.instances.iter().enumerate() {
        while instance.command(&["EXISTS", &key]) != "0" {
            assert!(Instant::now() < until, "{lock} is still on instance {number}");
            tokio::time::sleep(10.millis()).await;
        }
    }
}

#[tokio::test]
async fn requests_are_concurrent_and_a_release_reaches_instances_that_did_not_answer() {
    let site = Redlock::start();
    let (keeper, _) = connect(&url(&site)).await;
    // All instances have loaded the script that takes a lock, but not the one that releases it.
    let held = keeper.lock("before").ttl(60.secs()).acquire().await.unwrap();
    signal(&site.instances[3..], Signal::STOP);
    let began = Instant::now();
    let guard = soon(keeper.lock("a").ttl(60.secs()).acquire()).await.unwrap();
    assert!(began.elapsed() < INSTANCE_TIMEOUT * 2, "{:?}: the requests are sequential", began.elapsed());
    soon(guard.release()).await.unwrap();
    signal(&site.instances[3..], Signal::CONT);
    until_released_everywhere(&site, "a").await;
    held.check().unwrap();
    assert_eq!(site.instances[4].command(&["EXISTS", "lockkeeper:lock:before"]), "1");
    held.release().await.unwrap();
}

#[tokio::test]
async fn acquire_without_a_majority_fails_and_leaves_nothing_behind() {
    let site = Redlock::start();
    let keeper = Keeper::builder().request_timeout(6.secs()).connect_unfenced(&url(&site)).await.unwrap();
    let held = keeper.lock("before").ttl(60.secs()).acquire().await.unwrap();
    signal(&site.instances[2..], Signal::STOP);
    let error = soon(keeper.lock("a").ttl(60.secs()).no_wait().acquire()).await.unwrap_err();
    assert_eq!(error.code(), "unavailable", "{error}");
    assert!(error.to_string().contains("2 of 5") && error.to_string().contains("majority of 3"), "{error}");
    signal(&site.instances[2..], Signal::CONT);
    until_released_everywhere(&site, "a").await;
    held.check().unwrap();
    soon(held.release()).await.unwrap();
}

#[tokio::test]
async fn answers_slower_than_the_time_to_live_grant_nothing() {
    let site = Redlock::start();
    let (keeper, _) = connect(&url(&site)).await;
    // Connects to all instances: connecting to a stopped one would fail sooner.
    soon(soon(keeper.lock("before").acquire()).await.unwrap().release()).await.unwrap();
    signal(&site.instances[3..], Signal::STOP);
    // A majority grants at once, but the time to live has passed when the others time out.
    let (ttl, wait) = (Duration::from_millis(450), Duration::from_millis(900));
    let refused = soon(keeper.lock("a").ttl(ttl).wait(wait).acquire()).await.unwrap_err();
    assert_eq!(refused.code(), "timeout", "{refused}");
    signal(&site.instances[3..], Signal::CONT);
    until_released_everywhere(&site, "a").await;
}

#[tokio::test]
async fn loss_of_two_of_five_instances_is_tolerated_but_not_of_three() {
    let mut site = Redlock::start();
    let (keeper, _) = connect(&site.url()).await;
    let guard = keeper.lock("a").ttl(3.secs()).acquire().await.unwrap();
    site.instances[0].kill();
    site.instances[4].kill();
    soon(keeper.lock("b").ttl(3.secs()).acquire()).await.unwrap().release().await.unwrap();
    tokio::time::sleep(4.secs()).await;
    guard.check().unwrap();
    site.instances[2].kill();
    let builder = Keeper::builder().connect_timeout(500.millis()).request_timeout(1.secs());
    assert_eq!(builder.connect_unfenced(&site.url()).await.unwrap_err().code(), "unavailable");
    soon(guard.lost()).await;
}

#[tokio::test]
async fn renewals_restore_the_lock_on_instances_that_lost_it() {
    let mut site = Redlock::start();
    let (keeper, _) = connect(&site.url()).await;
    let ttl = 3.secs();
    let guard = keeper.lock("restored").ttl(ttl).acquire().await.unwrap();
    for index in 0..5 {
        site.instances[index].command(&["FLUSHALL"]);
        let until = std::time::Instant::now() + 20.secs();
        while site.instances[index].command(&["EXISTS", "lockkeeper:lock:restored"]) != "1" {
            assert!(std::time::Instant::now() < until, "the lock was not set again on instance {index}");
            tokio::time::sleep(20.millis()).await;
        }
    }
    guard.check().unwrap();
    guard.release().await.unwrap();
    for instance in &site.instances {
        assert_eq!(instance.command(&["EXISTS", "lockkeeper:lock:restored"]), "0");
    }
    site.kill();
}

#[tokio::test]
async fn too_few_or_identical_instances_are_detected() {
    let site = Redlock::start();
    let addresses = site.addresses();
    for count in [1, 2] {
        let error = Keeper::connect_unfenced(&site.url_at(&addresses[..count])).await.unwrap_err();
        assert_eq!(error.code(), "invalid");
        assert!(error.to_string().contains("at least 3"), "{error}");
    }
    assert_eq!(codes(&site.url_at(&addresses[..4])).await, ["even-number"]);
    // The first instance, with two addresses.
    let proxy = Wire::to(addresses[0]).unwrap();
    let url = format!("redlock://{},{},{}", proxy.address, addresses[0], addresses[1]);
    assert_eq!(codes(&url).await, ["same-server"]);
}
