//! Every view with data, by mouse and keyboard, in light and dark mode, on large and small screens.

use serde_json::json;

use crate::browser::Browser;
use crate::fixture::{EVIL, EVIL_OWNER, acquire, address, encoded, node, populate, session, wait_for};

/// The text of a cell of a table, by the row and the label of its column.
fn cell_of(row: &str, label: &str) -> String {
    format!("document.querySelector('{row}')?.querySelector('[data-label=\"{label}\"]')?.innerText")
}

/// A formatted duration.
const DURATION_PATTERN: &str = r"/^\d+(\.\d)? (ms|s|min|h)/";

/// Waits until a duration is shown and has advanced.
async fn until_it_advances(browser: &Browser, time: &str) {
    browser.until(&format!("{DURATION_PATTERN}.test({time})")).await;
    let before = browser.eval(time).await;
    browser.until(&format!("{DURATION_PATTERN}.test({time}) && {time} !== {before}")).await;
}

#[tokio::test(flavor = "current_thread")]
async fn every_view_shows_its_data() {
    let cell = node().await;
    let browser = Browser::start().await;
    let scene = populate(&cell).await;

    browser.open(&address(&cell, 1, "")).await;
    browser.until_text("leads the cell").await;
    browser.until("document.querySelector('[data-node=\"1\"]')?.innerText.includes('leader')").await;
    browser.until_text("orders/4472").await;
    browser.until_text("1 recorded election").await;
    let disk = "[...document.querySelectorAll('.cards div')].find((card) => card.innerText.startsWith('Disk')).innerText";
    browser.until(&format!(r"/^Disk\n[\d.]+ [KMGT]B free\n[\d.]+ [KMGT]?B used$/.test({disk})")).await;
    let own = "[data-node=\"1\"]";
    browser.until(&format!("{} === '0'", cell_of(own, "Lag (entries)"))).await;
    browser.until(&format!("{} === 'now'", cell_of(own, "Last answer"))).await;
    let top = cell.read("/v1/top").await;
    let shown = async |ms: &serde_json::Value| {
        browser.eval(&format!("import('/console/format.js').then((format) => format.duration({ms}))")).await
    };
    let [waited, held] = ["waited", "held"].map(|what| top["hour"][what].clone());
    assert!(waited["p99_ms"].as_u64() >= Some(100), "one of them waited for an expiry: {top}");
    for (word, spread) in [("waited", &waited), ("held", &held)] {
        let (p50, p99) = (shown(&spread["p50_ms"]).await, shown(&spread["p99_ms"]).await);
        let expected = format!("{word} p50 {}, p99 {}", p50.as_str().unwrap(), p99.as_str().unwrap());
        browser.until_text(&expected).await;
    }
    browser.screenshot("console-cell").await;

    browser.go("#/locks").await;
    browser.until_text("billing@host-3/4711").await;
    browser.until_text("7 in use in the cell").await;
    let pool = cell_of("[data-lock=\"pool/connections\"]", "Held by");
    browser.until(&format!("{pool}?.match(/1 of 8/g).length === 3 && {pool}.endsWith('and more')")).await;
    let row = "[data-lock=\"orders/4472\"]";
    let waiting = cell_of(row, "Waiting");
    browser.until(&format!("{waiting}?.startsWith('1. report@host-1/812 for ')")).await;
    let line = |label: &str| format!("{}.split(' for ').pop()", cell_of(row, label));
    until_it_advances(&browser, &line("Held by")).await;
    until_it_advances(&browser, &line("Waiting")).await;
    // Host, process, program and version, as our library sends them.
    let owner = cell.read("/v1/lock?name=jobs%2Fnightly").await["holders"][0]["owner"].clone();
    let parts: Vec<&str> = owner.as_str().unwrap().split('/').collect();
    let own = (std::process::id().to_string(), concat!("lockkeeper-", env!("CARGO_PKG_VERSION")));
    assert_eq!((parts.len(), parts[1], parts[3]), (4, own.0.as_str(), own.1), "{owner}");
    browser.until(&format!("{}.includes({owner})", cell_of("[data-lock=\"jobs/nightly\"]", "Held by"))).await;
    browser.screenshot("console-locks").await;
    // Search while typing.
    browser.eval("document.getElementById('prefix').focus()").await;
    browser.type_text("orders/").await;
    browser.until("document.querySelectorAll('tbody tr[data-lock]').length === 1").await;
    assert_eq!(browser.eval("document.activeElement.id").await, "prefix", "the focus stays while typing");
    browser.go("#/locks").await;

    browser.go(&format!("#/lock?name={}", encoded("orders/4472"))).await;
    browser.until("document.querySelectorAll('svg .bar').length === 6").await;
    browser.until_text("held exclusively, 1 waiting").await;
    browser.until("document.querySelectorAll('tr[data-what=\"released\"]').length === 4").await;
    // The expiry, in the drawing and in the table, with owner and token.
    browser.until("document.querySelectorAll('svg .bar.session_expired').length === 1").await;
    let bar = "document.querySelector('svg .bar.session_expired title').textContent";
    browser.until(&format!("{bar}.startsWith('import@host-9/77, token 1: lost: session expired')")).await;
    let expired = "document.querySelector('tr[data-what=\"session_expired\"]').innerText";
    for word in ["lost: session expired", "import@host-9/77", "held "] {
        browser.until(&format!("{expired}.includes({})", json!(word))).await;
    }
    browser
        .until("document.querySelector('tr[data-what=\"granted\"] [data-label=\"Duration\"]') !== null")
        .await;
    browser.until_text("waited ").await;
    let queue = "#queue tbody tr";
    browser.until(&format!("{} === '1'", cell_of(queue, "Position"))).await;
    until_it_advances(&browser, &cell_of(queue, "Waiting for")).await;
    until_it_advances(&browser, &cell_of("#holders tbody tr", "Held for")).await;
    browser.screenshot("console-lock").await;

    browser.go("#/lock?name=never").await;
    browser.until_text("no earlier holder is recorded").await;
    browser.until_text("No events recorded").await;

    browser.go("#/graph").await;
    browser.until("document.querySelectorAll('svg .point.ring').length === 2").await;
    browser.until("document.querySelectorAll('svg .point.chain').length === 3").await;
    browser.until_text("print@host-7/3 → pack@host-6/2 → ship@host-5/1").await;
    browser.screenshot("console-waits").await;

    browser.go("#/top").await;
    browser.until_text("Most contended").await;
    browser.until_text("reports/monthly").await;
    for (word, spread) in [("Waited", &waited), ("Held", &held)] {
        for (which, figure) in [("p50", "p50_ms"), ("p99", "p99_ms")] {
            let card = format!(
                "[...document.querySelectorAll('.cards div')].find((card) => card.innerText.startsWith('{word}, {which}'))"
            );
            browser
                .until(&format!("{card}.querySelector('dd').innerText === {}", shown(&spread[figure]).await))
                .await;
        }
    }
    let held_longest =
        "[...document.querySelectorAll('table')].find((table) => table.caption.innerText === 'Longest held')";
    until_it_advances(
        &browser,
        &format!("{held_longest}.querySelector('[data-label=\"Held for\"]').innerText"),
    )
    .await;
    browser.screenshot("console-top").await;

    browser.go("#/sessions").await;
    browser.until("document.querySelectorAll('tr[data-session] meter').length === 6").await;
    browser.screenshot("console-sessions").await;
    browser.eval("document.getElementById('owner').focus()").await;
    browser.type_text("report@").await;
    browser.until("document.querySelectorAll('tr[data-session]').length === 1").await;

    browser.go("#/elections").await;
    browser
        .until("document.querySelector('[data-election=\"scheduler\"]')?.innerText.includes('10.0.0.5:9000')")
        .await;
    browser.screenshot("console-elections").await;
    browser.go("#/audit").await;
    browser.until_text("members changed to 1 at").await;

    browser.scheme("dark").await;
    browser.size(390, 780, true).await;
    browser.go("#/locks").await;
    browser.until_text("billing@host-3/4711").await;
    let dark = browser.eval("getComputedStyle(document.body).backgroundColor").await;
    assert_eq!(dark, "rgb(20, 24, 28)");
    browser.screenshot("console-phone").await;
    scene.keeper.1.release().await.unwrap();
    browser.until("document.querySelector('[data-lock=\"jobs/nightly\"]') === null").await;
    assert_eq!(browser.errors(), [""; 0]);
}

#[tokio::test(flavor = "current_thread")]
async fn names_are_escaped() {
    let cell = node().await;
    let browser = Browser::start().await;
    let holds = session(&cell, EVIL_OWNER).await;
    let waits = session(&cell, EVIL).await;
    acquire(&cell, &holds, EVIL).await;
    let _waits = wait_for(&cell, 1, &waits, EVIL, 1).await;
    let campaign = json!({"session": holds, "election": EVIL, "value": EVIL_OWNER, "request": "stand"});
    cell.call("/v1/election/campaign", Some(&campaign)).await;
    browser.open(&address(&cell, 1, "")).await;
    for view in ["#/cell", "#/locks", "#/graph", "#/top", "#/sessions", "#/elections"] {
        browser.go(view).await;
        browser.until_text(EVIL).await;
        browser.until_text(EVIL_OWNER).await;
    }
    browser.go(&format!("#/lock?name={}", encoded(EVIL))).await;
    browser.until(&format!("document.querySelector('h2').textContent === {}", json!(EVIL))).await;
    browser.until_text(EVIL_OWNER).await;
    assert_eq!(browser.eval("window.hacked").await, json!(null), "a name was executed");
    assert_eq!(browser.errors(), [""; 0]);
}

#[tokio::test(flavor = "current_thread")]
async fn force_release_by_keyboard_needs_a_reason() {
    let cell = node().await;
    let browser = Browser::start().await;
    let anna = session(&cell, "anna").await;
    let bert = session(&cell, "bert").await;
    let before = acquire(&cell, &anna, EVIL).await;
    let _waits = wait_for(&cell, 1, &bert, EVIL, 1).await;
    browser.open(&address(&cell, 1, &format!("#/lock?name={}", encoded(EVIL)))).await;
    browser.until_text("anna").await;

    browser.eval("document.getElementById('force-open').focus()").await;
    browser.press("Enter", 13).await;
    browser.until("document.getElementById('force').open").await;
    browser
        .until(&format!("document.getElementById('force-what').innerText.includes('token {before}')"))
        .await;
    browser.screenshot("console-force").await;
    // Without a reason nothing happens.
    browser.press("Enter", 13).await;
    assert_eq!(browser.eval("document.getElementById('force').open").await, true);
    // Escape cancels.
    browser.press("Escape", 27).await;
    browser.until("!document.getElementById('force').open").await;
    assert_eq!(cell.read(&format!("/v1/lock?name={}", encoded(EVIL))).await["last_token"], before);

    browser.eval("document.getElementById('force-open').click()").await;
    browser.until("document.activeElement.id === 'force-reason'").await;
    browser.type_text("the host is <b>gone</b>").await;
    browser.press("Enter", 13).await;
    browser.until("!document.getElementById('force').open").await;
    browser
        .until("document.querySelector('tr[data-what=\"forced\"]')?.innerText.includes('<b>gone</b>')")
        .await;
    browser.until("document.querySelector('#view table tbody').innerText.includes('bert')").await;

    browser.go("#/audit").await;
    browser
        .until("document.querySelector('tr[data-what=\"force_release\"]')?.innerText.includes('1 holder')")
        .await;
    browser.screenshot("console-audit").await;
    assert_eq!(browser.errors(), [""; 0]);
    assert_eq!(browser.eval("window.hacked").await, json!(null));
}
