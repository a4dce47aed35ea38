//! The steps of Redlock, with instances that are stopped: they take every request, and answer when it is too late.

use std::time::{Duration, Instant};

use lockkeeper::prelude::*;
use lockkeeper_testkit::Signal;

use crate::cases::soon;
use crate::child::connect;
use crate::servers::Site;
use crate::servers::redis::Redis;
use crate::servers::redlock::Redlock;

/// So long that a machine with much to do is not taken for an instance that is stopped.
const TIMEOUT: Duration = Duration::from_millis(2_500);

fn url(site: &Redlock) -> String {
    let hosts: Vec<String> = site.addresses().iter().map(ToString::to_string).collect();
    format!("redlock://{}?timeout_ms={}", hosts.join(","), TIMEOUT.as_millis())
}

fn signal(instances: &[Redis], signal: Signal) {
    instances.iter().for_each(|instance| instance.signal(signal));
}

/// What is on the instances well before a time to live could have ended it.
async fn until_none_has(site: &Redlock, lock: &str) {
    let key = format!("lockkeeper:lock:{lock}");
    let until = Instant::now() + 15.secs();
    for (number, instance) in site.instances.iter().enumerate() {
        while instance.command(&["EXISTS", &key]) != "0" {
            assert!(Instant::now() < until, "{lock} is left on instance {number}");
            tokio::time::sleep(10.millis()).await;
        }
    }
}

#[tokio::test]
async fn all_are_asked_at_once_and_a_release_reaches_those_that_did_not_answer() {
    let site = Redlock::start();
    let (keeper, _) = connect(&url(&site)).await;
    // All of them know the script that takes; none has heard of a release.
    let held = keeper.lock("before").ttl(60.secs()).acquire().await.unwrap();
    signal(&site.instances[3..], Signal::STOP);
    let began = Instant::now();
    let guard = soon(keeper.lock("a").ttl(60.secs()).acquire()).await.unwrap();
    assert!(began.elapsed() < TIMEOUT * 2, "{:?}: one after the other", began.elapsed());
    soon(guard.release()).await.unwrap();
    signal(&site.instances[3..], Signal::CONT);
    until_none_has(&site, "a").await;
    held.check().unwrap();
    assert_eq!(site.instances[4].command(&["EXISTS", "lockkeeper:lock:before"]), "1");
    held.release().await.unwrap();
}

#[tokio::test]
async fn without_a_majority_nobody_holds_it_and_nothing_is_left_on_any() {
    let site = Redlock::start();
    let keeper = Keeper::builder().request_timeout(6.secs()).connect_unfenced(&url(&site)).await.unwrap();
    let held = keeper.lock("before").ttl(60.secs()).acquire().await.unwrap();
    signal(&site.instances[2..], Signal::STOP);
    let error = soon(keeper.lock("a").ttl(60.secs()).no_wait().acquire()).await.unwrap_err();
    assert_eq!(error.code(), "unavailable", "{error}");
    assert!(error.to_string().contains("2 of 5") && error.to_string().contains("majority of 3"), "{error}");
    signal(&site.instances[2..], Signal::CONT);
    until_none_has(&site, "a").await;
    held.check().unwrap();
    soon(held.release()).await.unwrap();
}

#[tokio::test]
async fn answers_that_take_longer_than_the_time_to_live_grant_nothing() {
    let site = Redlock::start();
    let (keeper, _) = connect(&url(&site)).await;
    // All instances are connected to: an instance that is not would be given up sooner.
    soon(soon(keeper.lock("before").acquire()).await.unwrap().release()).await.unwrap();
    signal(&site.instances[3..], Signal::STOP);
    // A majority says yes at once, and when the others have had their time, nothing is left of it.
    let (ttl, wait) = (Duration::from_millis(450), Duration::from_millis(900));
    let refused = soon(keeper.lock("a").ttl(ttl).wait(wait).acquire()).await.unwrap_err();
    assert_eq!(refused.code(), "timeout", "{refused}");
    signal(&site.instances[3..], Signal::CONT);
    until_none_has(&site, "a").await;
}
