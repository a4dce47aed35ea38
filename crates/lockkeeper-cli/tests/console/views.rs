//! Every view with data in it, by mouse and by keyboard, light and dark, large and small.

use serde_json::json;

use crate::browser::Browser;
use crate::harness::cell::Cell;
use crate::scene::{EVIL, EVIL_OWNER, address, encoded, give, session, take, wait_for};

async fn node() -> Cell {
    let mut cell = Cell::plan(1);
    cell.spawn_all();
    cell.leader().await;
    cell
}

#[tokio::test(flavor = "current_thread")]
async fn every_view_shows_what_is_there() {
    let cell = node().await;
    let browser = Browser::start().await;
    let anna = session(&cell, "billing@host-3/4711").await;
    let bert = session(&cell, "report@host-1/812").await;
    for round in 0..4 {
        let who = [&anna, &bert][round % 2];
        let body = json!({"session": who, "lock": "orders/4472"});
        let token = cell.ask("/v1/lock/acquire", Some(&body)).await["token"].as_u64().unwrap();
        give(&cell, who, "orders/4472", token).await;
    }
    take(&cell, &anna, "orders/4472").await;
    take(&cell, &bert, "reports/monthly").await;
    // A ring of two, and a chain of its own.
    let _one = wait_for(&cell, 1, &anna, "reports/monthly", 1).await;
    let _two = wait_for(&cell, 1, &bert, "orders/4472", 1).await;
    let ship = session(&cell, "ship@host-5/1").await;
    let pack = session(&cell, "pack@host-6/2").await;
    let print = session(&cell, "print@host-7/3").await;
    take(&cell, &ship, "dock/3").await;
    take(&cell, &pack, "belt/9").await;
    let _three = wait_for(&cell, 1, &pack, "dock/3", 1).await;
    let _four = wait_for(&cell, 1, &print, "belt/9", 1).await;
    let campaign =
        json!({"session": ship, "election": "scheduler", "value": "10.0.0.5:9000", "request": "stand"});
    cell.ask("/v1/election/campaign", Some(&campaign)).await;

    browser.open(&address(&cell, 1, "")).await;
    browser.until_text("leads the cell").await;
    browser.until("document.querySelector('[data-node=\"1\"]')?.innerText.includes('leader')").await;
    browser.until_text("orders/4472").await;
    browser.until_text("One election is remembered").await;
    browser.picture("console-cell").await;

    browser.go("#/locks").await;
    browser.until_text("billing@host-3/4711").await;
    browser.until_text("5 in use in the cell").await;
    browser.picture("console-locks").await;
    // Searching as one types.
    browser.tell("document.getElementById('prefix').focus()").await;
    browser.type_in("orders/").await;
    browser.until("document.querySelectorAll('tbody tr[data-lock]').length === 1").await;
    assert_eq!(browser.tell("document.activeElement.id").await, "prefix", "the focus stays while one types");
    browser.go("#/locks").await;

    browser.go(&format!("#/lock?name={}", encoded("orders/4472"))).await;
    browser.until("document.querySelectorAll('svg .bar').length === 5").await;
    browser.until_text("held by one alone, 1 waits").await;
    browser.until("document.querySelectorAll('tr[data-what=\"released\"]').length === 4").await;
    browser.picture("console-lock").await;

    browser.go("#/graph").await;
    browser.until("document.querySelectorAll('svg .point.ring').length === 2").await;
    browser.until("document.querySelectorAll('svg .point.chain').length === 3").await;
    browser.until_text("print@host-7/3 → pack@host-6/2 → ship@host-5/1").await;
    browser.picture("console-waits").await;

    browser.go("#/top").await;
    browser.until_text("Most wait for").await;
    browser.until_text("reports/monthly").await;
    browser.picture("console-top").await;

    browser.go("#/sessions").await;
    browser.until("document.querySelectorAll('tr[data-session] meter').length === 5").await;
    browser.picture("console-sessions").await;
    browser.tell("document.getElementById('owner').focus()").await;
    browser.type_in("report@").await;
    browser.until("document.querySelectorAll('tr[data-session]').length === 1").await;

    browser.go("#/elections").await;
    browser
        .until("document.querySelector('[data-election=\"scheduler\"]')?.innerText.includes('10.0.0.5:9000')")
        .await;
    browser.picture("console-elections").await;
    browser.go("#/audit").await;
    browser.until_text("the members are now 1 at").await;

    browser.scheme("dark").await;
    browser.size(390, 780, true).await;
    browser.go("#/locks").await;
    browser.until_text("billing@host-3/4711").await;
    let dark = browser.tell("getComputedStyle(document.body).backgroundColor").await;
    assert_eq!(dark, "rgb(20, 24, 28)");
    let narrow = browser.tell("document.documentElement.scrollWidth <= 390").await;
    assert_eq!(narrow, true, "a phone need not be moved sideways");
    browser.picture("console-phone").await;
    assert_eq!(browser.complaints(), [""; 0]);
}

#[tokio::test(flavor = "current_thread")]
async fn no_name_is_taken_for_a_script() {
    let cell = node().await;
    let browser = Browser::start().await;
    let holds = session(&cell, EVIL_OWNER).await;
    let waits = session(&cell, EVIL).await;
    take(&cell, &holds, EVIL).await;
    let _waits = wait_for(&cell, 1, &waits, EVIL, 1).await;
    let campaign = json!({"session": holds, "election": EVIL, "value": EVIL_OWNER, "request": "stand"});
    cell.ask("/v1/election/campaign", Some(&campaign)).await;
    browser.open(&address(&cell, 1, "")).await;
    for view in ["#/cell", "#/locks", "#/graph", "#/top", "#/sessions", "#/elections"] {
        browser.go(view).await;
        browser.until_text(EVIL).await;
        browser.until_text(EVIL_OWNER).await;
    }
    browser.go(&format!("#/lock?name={}", encoded(EVIL))).await;
    browser.until(&format!("document.querySelector('h2').textContent === {}", json!(EVIL))).await;
    browser.until_text(EVIL_OWNER).await;
    assert_eq!(browser.tell("window.hacked").await, json!(null), "a name was taken for a script");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[tokio::test(flavor = "current_thread")]
async fn a_lock_is_freed_by_force_with_a_reason_and_by_keyboard() {
    let cell = node().await;
    let browser = Browser::start().await;
    let anna = session(&cell, "anna").await;
    let bert = session(&cell, "bert").await;
    let before = take(&cell, &anna, EVIL).await;
    let _waits = wait_for(&cell, 1, &bert, EVIL, 1).await;
    browser.open(&address(&cell, 1, &format!("#/lock?name={}", encoded(EVIL)))).await;
    browser.until_text("anna").await;

    browser.tell("document.getElementById('force-open').focus()").await;
    browser.press("Enter", 13).await;
    browser.until("document.getElementById('force').open").await;
    browser
        .until(&format!("document.getElementById('force-what').innerText.includes('token {before}')"))
        .await;
    browser.picture("console-force").await;
    // No reason, no force.
    browser.press("Enter", 13).await;
    assert_eq!(browser.tell("document.getElementById('force').open").await, true);
    // A second thought.
    browser.press("Escape", 27).await;
    browser.until("!document.getElementById('force').open").await;
    assert_eq!(cell.read(&format!("/v1/lock?name={}", encoded(EVIL))).await["last_token"], before);

    browser.tell("document.getElementById('force-open').click()").await;
    browser.until("document.activeElement.id === 'force-reason'").await;
    browser.type_in("the host is <b>gone</b>").await;
    browser.press("Enter", 13).await;
    browser.until("!document.getElementById('force').open").await;
    browser
        .until("document.querySelector('tr[data-what=\"forced\"]')?.innerText.includes('<b>gone</b>')")
        .await;
    browser.until("document.querySelector('#view table tbody').innerText.includes('bert')").await;

    browser.go("#/audit").await;
    browser.until("document.querySelector('tr[data-what=\"force_release\"]')?.innerText.includes('taken from one holder')").await;
    browser.picture("console-audit").await;
    assert_eq!(browser.complaints(), [""; 0]);
    assert_eq!(browser.tell("window.hacked").await, json!(null));
}
