//! A hundred thousand locks in a cell of three must not make it slow, neither on the leader nor on a follower.
//!
//! `LOCKKEEPER_CONSOLE_LOCKS=1000000 cargo test -p lockkeeper-cli --all-features --test console thousand -- --nocapture` takes a million.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::browser::Browser;
use crate::harness::cell::Cell;
use crate::scene::{address, give, session};

const LOCKS: usize = 100_000;
const LOCKS_WANTED: &str = "LOCKKEEPER_CONSOLE_LOCKS";
/// As many as one request can name.
const AT_ONCE: usize = 128;
/// What it should take is a second; a busy machine and a build without optimisation may take longer.
const FIRST_VIEW_MAX: Duration = Duration::from_secs(4);
const UPDATE_MAX: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "current_thread")]
async fn a_hundred_thousand_locks() {
    let mut cell = Cell::plan(3);
    cell.spawn_all();
    cell.until_agreed().await;
    let anna = session(&cell, "anna").await;
    let wanted = std::env::var(LOCKS_WANTED).ok();
    let locks = wanted.map_or(LOCKS, |locks| locks.parse().expect("a number of locks"));
    for first in (0..locks).step_by(AT_ONCE) {
        let names: Vec<String> =
            (first..locks.min(first + AT_ONCE)).map(|n| format!("orders/{n:06}")).collect();
        let body = json!({"session": anna, "locks": names, "request": first});
        cell.ask("/v1/lock/acquire_all", Some(&body)).await;
    }
    let browser = Browser::start().await;
    let leader = cell.until_agreed().await;
    let follower = cell.others(leader)[0];
    cell.until_even(&[leader, follower]).await;
    // Once without looking at the clock: the browser itself has to get going.
    browser.open(&address(&cell, leader, "#/audit")).await;
    for node in [leader, follower] {
        let place = if node == leader { "leader" } else { "follower" };
        for view in ["#/cell", "#/locks", "#/top", "#/graph", "#/sessions", "#/locks?prefix=orders/0999"] {
            let took = browser.open(&address(&cell, node, view)).await;
            println!("{locks} locks, {place}: first view of {view} after {took:?}");
            assert!(took < FIRST_VIEW_MAX, "{view} took {took:?}");
        }
        browser.until_text("50 (and more) shown").await;
        let next =
            "[...document.querySelectorAll('button')].find((b) => b.innerText === 'Next page').click()";
        browser.tell(next).await;
        browser.until("document.querySelector('[data-lock=\"orders/099950\"]')").await;

        browser.go("#/locks?prefix=watched").await;
        let mut slowest = Duration::ZERO;
        for round in 0..5 {
            let began = Instant::now();
            let body = json!({"session": anna, "lock": "watched", "request": format!("{place} {round}")});
            let token = cell.ask("/v1/lock/acquire", Some(&body)).await;
            browser.until("document.querySelector('[data-lock=\"watched\"]')").await;
            slowest = slowest.max(began.elapsed());
            give(&cell, &anna, "watched", token["token"].as_u64().unwrap()).await;
            browser.until("!document.querySelector('[data-lock=\"watched\"]')").await;
        }
        println!("{locks} locks, {place}: an update was seen after at most {slowest:?}");
        assert!(slowest < UPDATE_MAX, "an update took {slowest:?}");
    }
    assert_eq!(browser.complaints(), [""; 0]);
}
