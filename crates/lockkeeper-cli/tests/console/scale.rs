//! The console stays fast with a hundred thousand locks, on the leader and on a follower.
//!
//! `LOCKKEEPER_CONSOLE_LOCKS=1000000 cargo test -p lockkeeper-cli --all-features --test console thousand -- --nocapture` uses a million.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::browser::Browser;
use crate::fixture::{address, median_and_slowest, release, session};
use crate::harness::cell::Cell;

const LOCKS: usize = 100_000;
const LOCKS_WANTED: &str = "LOCKKEEPER_CONSOLE_LOCKS";
/// Maximum number of locks in one request.
const AT_ONCE: usize = 128;
/// The goal is one second; the measured times are printed. The limits allow for a debug build on a busy machine: the best of
/// a few attempts counts for a view, and the median for updates.
const FIRST_VIEW_MAX: Duration = Duration::from_secs(5);
const UPDATE_MAX: Duration = Duration::from_secs(5);
const OPENS: usize = 3;
const UPDATES: usize = 5;

#[tokio::test(flavor = "current_thread")]
async fn console_is_fast_with_a_hundred_thousand_locks() {
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
        cell.call("/v1/lock/acquire_all", Some(&body)).await;
    }
    let browser = Browser::start().await;
    let leader = cell.until_agreed().await;
    let follower = cell.others(leader)[0];
    cell.until_in_sync(&[leader, follower]).await;
    // Warm up the browser.
    browser.open(&address(&cell, leader, "#/audit")).await;
    for node in [leader, follower] {
        let place = if node == leader { "leader" } else { "follower" };
        for view in ["#/cell", "#/locks", "#/top", "#/graph", "#/sessions", "#/locks?prefix=orders/0999"] {
            let mut best = Duration::MAX;
            for _ in 0..OPENS {
                best = browser.open(&address(&cell, node, view)).await.min(best);
                if best < FIRST_VIEW_MAX {
                    break;
                }
            }
            println!("{locks} locks, {place}: first view of {view} after {best:?}");
            assert!(best < FIRST_VIEW_MAX, "{view} on the {place} took {best:?} at best");
        }
        browser.until_text("50 (and more) shown").await;
        let next =
            "[...document.querySelectorAll('button')].find((b) => b.innerText === 'Next page').click()";
        browser.eval(next).await;
        browser.until("document.querySelector('[data-lock=\"orders/099950\"]')").await;

        browser.go("#/locks?prefix=watched").await;
        let mut times = Vec::new();
        for round in 0..UPDATES {
            let began = Instant::now();
            let body = json!({"session": anna, "lock": "watched", "request": format!("{place} {round}")});
            let token = cell.call("/v1/lock/acquire", Some(&body)).await;
            browser.until("document.querySelector('[data-lock=\"watched\"]')").await;
            times.push(began.elapsed());
            let began = Instant::now();
            release(&cell, &anna, "watched", token["token"].as_u64().unwrap()).await;
            browser.until("!document.querySelector('[data-lock=\"watched\"]')").await;
            times.push(began.elapsed());
        }
        let (median, slowest) = median_and_slowest(times);
        println!("{locks} locks, {place}: updates seen within {median:?} (median), {slowest:?} (slowest)");
        assert!(median < UPDATE_MAX, "the median update on the {place} took {median:?}");
    }
    assert_eq!(browser.errors(), [""; 0]);
}
