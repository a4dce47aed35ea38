//! Live updates of open pages.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::browser::Browser;
use crate::fixture::{acquire, address, median_and_slowest, release, session};
use crate::harness::cell::Cell;
use crate::harness::client::token;

#[tokio::test(flavor = "current_thread")]
async fn open_pages_show_lock_changes_and_failures() {
    let mut cell = Cell::plan(3);
    cell.spawn_all();
    let leader = cell.until_agreed().await;
    let (watched, killed) = (cell.others(leader)[0], cell.others(leader)[1]);
    let anna = session(&cell, "anna").await;
    let browser = Browser::start().await;

    // A follower shows its applied state and that it is read-only.
    browser.open(&address(&cell, watched, "#/locks")).await;
    browser.until_text(&format!("follower of node {leader}: read-only")).await;
    let mut times = Vec::new();
    for round in 0..3 {
        let began = Instant::now();
        let body = json!({"session": anna, "lock": "watched", "request": round});
        let token = token(&cell.call("/v1/lock/acquire", Some(&body)).await);
        browser.until("document.querySelector('[data-lock=\"watched\"]')?.innerText.includes('anna')").await;
        times.push(began.elapsed());
        let began = Instant::now();
        release(&cell, &anna, "watched", token).await;
        browser.until("!document.querySelector('[data-lock=\"watched\"]')").await;
        times.push(began.elapsed());
    }
    let (median, slowest) = median_and_slowest(times);
    println!("changes seen on a follower within {median:?} (median), {slowest:?} (slowest)");
    // The goal is less than a second; a busy machine may take longer.
    assert!(median < Duration::from_secs(5), "an update should take less than a second: {median:?}");
    // Only the leader force-releases; the page links to it.
    let held = acquire(&cell, &anna, "held").await;
    browser.go("#/lock?name=held").await;
    browser.until_text("anna").await;
    browser.eval("document.getElementById('force-open').click()").await;
    browser.type_text("because").await;
    browser.eval("document.getElementById('force-do').click()").await;
    browser.until("document.querySelector('#force-error a')?.innerText.includes('leader')").await;
    browser.eval("document.getElementById('force-cancel').click()").await;

    // The leader's page shows a silent follower.
    browser.open(&address(&cell, leader, "#/cell")).await;
    let row = format!("document.querySelector('[data-node=\"{killed}\"]').innerText");
    browser.until(&format!("{row}.includes('follower')")).await;
    cell.kill(killed);
    browser.until(&format!("{row}.includes('silent')")).await;
    // It falls behind while the others continue.
    let behind = format!(
        "document.querySelector('[data-node=\"{killed}\"] [data-label=\"Lag (entries)\"]').innerText"
    );
    let gone = acquire(&cell, &anna, "while one is gone").await;
    browser.until(&format!("Number({behind}) > 0")).await;
    release(&cell, &anna, "while one is gone", gone).await;
    browser.screenshot("console-node-lost").await;
    cell.spawn(killed);
    browser.until(&format!("{row}.includes('follower') && {behind} === '0'")).await;
    cell.until_agreed().await;

    // The watched node dies: the page reports it and links to the other nodes.
    browser.errors();
    cell.kill(leader);
    browser.until_text("Node not reachable").await;
    browser.until("document.querySelectorAll('#state a').length === 2").await;
    let successor = cell.leader().await;
    browser.open(&address(&cell, successor, "#/cell")).await;
    browser.until_text(&format!("Node {successor} leads the cell")).await;
    browser.until("document.body.innerText.includes('recorded elections')").await;
    // The history has survived the fail-over.
    browser.go("#/lock?name=watched").await;
    browser.until("document.querySelectorAll('tr[data-what]').length === 6").await;
    release(&cell, &anna, "held", held).await;
    cell.spawn(leader);
    browser.open(&address(&cell, leader, "#/lock?name=watched")).await;
    browser.until("document.querySelectorAll('tr[data-what]').length === 6").await;
}
