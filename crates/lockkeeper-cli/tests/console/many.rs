//! A hundred thousand locks must not make it slow.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::browser::Browser;
use crate::harness::cell::Cell;
use crate::harness::http::Http;
use crate::scene::{address, give, session, take};

const LOCKS: usize = 100_000;
/// As many as one request can name.
const AT_ONCE: usize = 128;
/// What it should take is a second; a busy machine and a build without optimisation may take longer.
const FIRST_VIEW_MAX: Duration = Duration::from_secs(4);
const UPDATE_MAX: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "current_thread")]
async fn a_hundred_thousand_locks() {
    let mut cell = Cell::plan(1);
    cell.spawn_all();
    cell.leader().await;
    let anna = session(&cell, "anna").await;
    let mut connection = Http::connect(&cell.node(1).listens).await.unwrap();
    for first in (0..LOCKS).step_by(AT_ONCE) {
        let names: Vec<String> =
            (first..LOCKS.min(first + AT_ONCE)).map(|n| format!("orders/{n:06}")).collect();
        connection
            .post("/v1/lock/acquire_all", &json!({"session": anna, "locks": names}))
            .await
            .unwrap()
            .ok();
    }
    let browser = Browser::start().await;
    // Once without looking at the clock: the browser itself has to get going.
    browser.open(&address(&cell, 1, "#/audit")).await;
    for view in ["#/cell", "#/locks", "#/top", "#/graph", "#/sessions", "#/locks?prefix=orders/0999"] {
        let took = browser.open(&address(&cell, 1, view)).await;
        println!("{LOCKS} locks: first view of {view} after {took:?}");
        assert!(took < FIRST_VIEW_MAX, "{view} took {took:?}");
    }
    browser.until_text("50 (and more) shown").await;
    browser
        .tell("[...document.querySelectorAll('button')].find((b) => b.innerText === 'Next page').click()")
        .await;
    browser.until("document.querySelector('[data-lock=\"orders/099950\"]')").await;

    browser.go("#/locks?prefix=watched").await;
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        let began = Instant::now();
        let token = cell.ask("/v1/lock/acquire", Some(&json!({"session": anna, "lock": "watched"}))).await;
        browser.until("document.querySelector('[data-lock=\"watched\"]')").await;
        slowest = slowest.max(began.elapsed());
        give(&cell, &anna, "watched", token["token"].as_u64().unwrap()).await;
        browser.until("!document.querySelector('[data-lock=\"watched\"]')").await;
    }
    println!("{LOCKS} locks: an update was seen after at most {slowest:?}");
    assert!(slowest < UPDATE_MAX, "an update took {slowest:?}");
    take(&cell, &anna, "last").await;
    assert_eq!(browser.complaints(), [""; 0]);
}
