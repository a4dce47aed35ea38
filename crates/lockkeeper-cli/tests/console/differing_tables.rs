//! The console of a cell in which the lock table of a node differs, and the UTC of events.

use crate::browser::Browser;
use crate::fixture::{acquire, address, encoded, node, session};
use crate::harness::until;

/// Nodes in this process, because the table of a real node cannot be made to differ.
#[cfg(feature = "simulation")]
#[tokio::test(flavor = "current_thread")]
async fn differing_table_is_shown_with_both_hashes_and_the_entry() {
    use serde_json::json;

    use crate::in_process::{find_leader, leader, put, start_cell, until};

    let nodes = start_cell(|_, config| config).await;
    let page = |node: usize| format!("http://{}/", nodes[node].address().expect("it listens"));
    let leads = leader(&nodes).await;
    let damaged = (leads + 1) % 3;
    nodes[damaged].api().make_table_different();
    let found = until("the difference to be noticed", async || {
        if let Some(leader) = find_leader(&nodes) {
            put(&nodes[leader], "k", 1).await;
        }
        nodes[damaged].api().status().disagreement
    })
    .await;
    let browser = Browser::start().await;
    browser.open(&page(damaged)).await;
    browser.until_text("The lock table of this node differs from the majority's").await;
    for part in [found.own_hash.to_string(), found.other_hash.to_string(), format!("entry {}", found.index)] {
        browser.until_text(&part).await;
    }

    // The leader shows which member differs.
    let node = leader(&nodes).await;
    let id = damaged as u64 + 1;
    let shown = until("the leader to report it", async || {
        let members = nodes[node].api().status().members;
        members.into_iter().find(|member| member.node_id == id)?.disagreement
    })
    .await;
    browser.open(&page(node)).await;
    let mark = format!("document.querySelector('[data-node=\"{id}\"] .bad')");
    browser.until(&format!("{mark}?.innerText === 'table differs'")).await;
    for part in [shown.own_hash.to_string(), shown.other_hash.to_string(), format!("entry {}", shown.index)] {
        browser.until(&format!("{mark}?.title.includes({})", json!(part))).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn events_show_their_utc() {
    let cell = node().await;
    let session = session(&cell, "test").await;
    acquire(&cell, &session, "orders/1").await;
    let utc_ms = until("the UTC of the grant", async || {
        let history = cell.read("/v1/history?name=orders%2F1").await;
        history["events"][0]["utc_ms"].as_u64().filter(|utc_ms| *utc_ms > 0)
    })
    .await;
    let browser = Browser::start().await;
    browser.open(&address(&cell, 1, &format!("#/lock?name={}", encoded("orders/1")))).await;
    let shown = "document.querySelector('tr[data-what=\"granted\"] .utc')?.innerText";
    browser.until(&format!(r"/^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC$/.test({shown})")).await;
    browser
        .until(&format!(
            "{shown} === new Date({utc_ms}).toISOString().slice(0, 19).replace('T', ' ') + ' UTC'"
        ))
        .await;
}
