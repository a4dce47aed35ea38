//! The console by keyboard, with a screen reader, and on a phone.

use serde_json::Value;

use crate::browser::Browser;
use crate::fixture::{VIEWS, address, node, populate};

/// Interactive elements and images, which are unusable without a name.
const NAMED: [&str; 9] =
    ["button", "link", "textbox", "searchbox", "combobox", "checkbox", "meter", "image", "table"];

fn role(node: &Value) -> &str {
    node["role"]["value"].as_str().unwrap_or_default()
}

fn name(node: &Value) -> &str {
    node["name"]["value"].as_str().unwrap_or_default().trim()
}

fn property<'a>(node: &'a Value, wanted: &str) -> &'a Value {
    let properties = node["properties"].as_array();
    let found = properties.and_then(|all| all.iter().find(|property| property["name"] == wanted));
    found.map_or(&Value::Null, |property| &property["value"]["value"])
}

/// Checks everything in a view that a screen reader needs.
fn check(view: &str, nodes: &[Value]) {
    let all = |wanted: &str| nodes.iter().filter(|node| role(node) == wanted).collect::<Vec<_>>();
    for node in nodes.iter().filter(|node| NAMED.contains(&role(node))) {
        assert_ne!(name(node), "", "{view}: a {} without a name: {node}", role(node));
    }
    for landmark in ["banner", "navigation", "main", "contentinfo"] {
        assert_eq!(all(landmark).len(), 1, "{view}: {landmark}");
    }
    let levels: Vec<_> = all("heading").iter().filter_map(|node| property(node, "level").as_u64()).collect();
    assert_eq!(
        levels.iter().filter(|level| **level == 1).count(),
        1,
        "{view}: one heading of the page: {levels:?}"
    );
    assert!(levels.contains(&2), "{view}: a heading of the view: {levels:?}");
    assert!(levels.windows(2).all(|pair| pair[1] <= pair[0] + 1), "{view}: no level is left out: {levels:?}");
    let says = all("status");
    assert_eq!(says.len(), 1, "{view}: the state of the node is announced");
    assert_eq!(property(says[0], "live"), "polite", "{view}");

    let tables = all("table");
    assert_ne!(tables.len(), 0, "{view}: drawings have a table with the same data");
    let children = |node: &Value| {
        let ids = node["childIds"].as_array().cloned().unwrap_or_default();
        nodes.iter().filter(|child| ids.contains(&child["nodeId"])).collect::<Vec<_>>()
    };
    for table in tables {
        // Down to the cells; their content does not belong to the table.
        let (mut heads, mut rows, mut open) = (0, 0, children(table));
        while let Some(node) = open.pop() {
            match role(node) {
                "columnheader" => {
                    assert_ne!(name(node), "", "{view}: a column without a name in {}", name(table));
                    heads += 1;
                }
                "row" => {
                    let cells = children(node);
                    let has = |wanted: &str| cells.iter().any(|cell| role(cell) == wanted);
                    assert!(
                        has("columnheader") || has("cell"),
                        "{view}: a row without cells in {}",
                        name(table)
                    );
                    rows += 1;
                    open.extend(cells);
                }
                "rowgroup" | "generic" => open.extend(children(node)),
                _ => {}
            }
        }
        assert!(heads > 1 && rows > 0, "{view}: {} has {heads} heads and {rows} rows", name(table));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn every_view_is_accessible_and_fits_on_a_phone() {
    let cell = node().await;
    let browser = Browser::start().await;
    let _scene = populate(&cell).await;
    browser.open(&address(&cell, 1, "")).await;
    for (width, phone) in [(1040, false), (390, true)] {
        browser.size(width, 780, phone).await;
        for view in VIEWS {
            browser.go(view).await;
            check(&format!("{view} at {width}"), &browser.accessibility_tree().await);
            let scrolls = browser.eval("document.documentElement.scrollWidth").await;
            assert!(scrolls.as_u64() <= Some(width.into()), "{view} scrolls sideways: {scrolls} of {width}");
        }
    }
    assert_eq!(browser.errors(), [""; 0]);
}

/// Presses Tab until an expression is true.
async fn tab_until(browser: &Browser, expression: &str) {
    for _ in 0..40 {
        browser.press("Tab", 9).await;
        if browser.eval(&format!("!!({expression})")).await == true {
            return;
        }
    }
    panic!("{expression} was not reached after 40 tabs");
}

#[tokio::test(flavor = "current_thread")]
async fn every_view_and_action_is_reachable_by_keyboard() {
    let cell = node().await;
    let browser = Browser::start().await;
    let _scene = populate(&cell).await;
    browser.open(&address(&cell, 1, "#/cell")).await;
    // The address changes before the view does: the title names the current view.
    let shows = async |title: &str| {
        let busy = "document.querySelector('main').getAttribute('aria-busy')";
        browser.until(&format!("document.title === '{title} · Lockkeeper' && {busy} === 'false'")).await;
    };
    // The skip link comes first, is visible, and leads to the content.
    browser.press("Tab", 9).await;
    browser.until("document.activeElement.id === 'skip'").await;
    assert_eq!(browser.eval("document.activeElement.getBoundingClientRect().left >= 0").await, true);
    browser.press("Enter", 13).await;
    browser.until("document.activeElement.id === 'view'").await;
    shows("Cell").await;
    assert_eq!(browser.eval("location.hash").await, "#/cell", "the address does not change");

    // Every view by the navigation.
    for view in ["#/locks", "#/graph", "#/top", "#/sessions", "#/elections", "#/audit", "#/cell"] {
        browser.open(&address(&cell, 1, "#/cell")).await;
        tab_until(&browser, &format!("document.activeElement.hash === '{view}'")).await;
        assert_ne!(browser.eval("getComputedStyle(document.activeElement).outlineStyle").await, "none");
        browser.press("Enter", 13).await;
        browser.until(&format!("location.hash === '{view}'")).await;
        browser.until(&format!("document.querySelector('nav a[aria-current]')?.hash === '{view}'")).await;
    }

    // From the search to a lock, and to the button that force-releases it.
    browser.open(&address(&cell, 1, "#/locks")).await;
    tab_until(&browser, "document.activeElement.id === 'prefix'").await;
    browser.type_text("dock").await;
    browser.until("document.querySelectorAll('tbody tr[data-lock]').length === 1").await;
    tab_until(&browser, "document.activeElement.innerText === 'dock/3'").await;
    browser.press("Enter", 13).await;
    shows("dock/3").await;
    assert_eq!(browser.eval("document.activeElement.id").await, "view", "a new view starts at its beginning");
    tab_until(&browser, "document.activeElement.id === 'force-open'").await;
    assert_eq!(browser.errors(), [""; 0]);
}
