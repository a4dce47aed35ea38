//! A cell with data for every view.

use std::time::Duration;

use lockkeeper::{Guard, Keeper};
use serde_json::json;

use crate::harness::cell::Cell;
use crate::harness::client::token;
use crate::harness::http::{self, Http};
use crate::harness::until;

/// A name that runs a script if it is not escaped.
pub const EVIL: &str = "<script>window.hacked = 1</script>";
/// An owner that runs a script if it is not escaped.
pub const EVIL_OWNER: &str = "\"><img src=x onerror=\"window.hacked = 2\">";

/// Opens a session that outlives the test.
pub async fn session(cell: &Cell, owner: &str) -> String {
    let opened = cell.call("/v1/session/open", Some(&json!({"ttl_ms": 3_600_000, "owner": owner}))).await;
    opened["session"].as_str().unwrap().to_owned()
}

/// Acquires a free lock.
pub async fn acquire(cell: &Cell, session: &str, lock: &str) -> u64 {
    let body = json!({"session": session, "lock": lock, "request": format!("take {lock}")});
    token(&cell.call("/v1/lock/acquire", Some(&body)).await)
}

/// Releases a lock.
pub async fn release(cell: &Cell, session: &str, lock: &str, token: u64) {
    cell.call("/v1/lock/release", Some(&json!({"session": session, "lock": lock, "token": token}))).await;
}

/// Waits for a lock. The wait lasts as long as the returned connection is kept.
pub async fn wait_for(cell: &Cell, node: u64, session: &str, lock: &str, place: u64) -> Http {
    let mut connection = Http::connect(&cell.node(node).listen_addr).await.unwrap();
    let request = format!("wait {lock} {place}");
    let body = json!({"session": session, "lock": lock, "wait_forever": true, "request": request});
    connection.send_post("/v1/lock/acquire", &body).await.unwrap();
    until(&format!("{place} to wait for {lock}"), async || {
        let path = format!("/v1/lock?name={}", encoded(lock));
        let answer = http::quick_get(&cell.node(node).listen_addr, &path).await?;
        (answer.body["waiting"].as_u64()? >= place).then_some(())
    })
    .await;
    connection
}

/// The median and the maximum.
pub fn median_and_slowest(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() - 1])
}

/// Percent-encodes a name.
pub fn encoded(name: &str) -> String {
    name.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

pub fn address(cell: &Cell, node: u64, hash: &str) -> String {
    format!("http://{}/{hash}", cell.node(node).listen_addr)
}

/// The addresses of all views.
pub const VIEWS: [&str; 8] = [
    "#/cell",
    "#/locks",
    "#/lock?name=orders%2F4472",
    "#/graph",
    "#/top",
    "#/sessions",
    "#/elections",
    "#/audit",
];

/// Waiters and a client of a populated cell, kept alive until dropped.
pub struct Scene {
    _waits: [Http; 4],
    /// A client of our library with its default owner.
    pub keeper: (Keeper, Guard),
}

/// Starts a cell of one node.
pub async fn node() -> Cell {
    let mut cell = Cell::plan(1);
    cell.spawn_all();
    cell.leader().await;
    cell
}

/// Creates data for every view: a history with an expiry, a cycle, a chain, finished waits, an election.
pub async fn populate(cell: &Cell) -> Scene {
    let brief = json!({"ttl_ms": 200, "owner": "import@host-9/77"});
    let brief = cell.call("/v1/session/open", Some(&brief)).await["session"].as_str().unwrap().to_owned();
    acquire(cell, &brief, "orders/4472").await;
    let anna = session(cell, "billing@host-3/4711").await;
    let bert = session(cell, "report@host-1/812").await;
    let waits =
        json!({"session": anna, "lock": "orders/4472", "wait_ms": 30_000, "request": "after the expiry"});
    let mut holder = token(&cell.call("/v1/lock/acquire", Some(&waits)).await);
    for (who, next) in [(&anna, &bert), (&bert, &anna), (&anna, &bert), (&bert, &anna)] {
        release(cell, who, "orders/4472", holder).await;
        let body = json!({"session": next, "lock": "orders/4472", "request": format!("after {holder}")});
        holder = token(&cell.call("/v1/lock/acquire", Some(&body)).await);
    }
    acquire(cell, &bert, "reports/monthly").await;
    // A cycle of two, and a separate chain.
    let one = wait_for(cell, 1, &anna, "reports/monthly", 1).await;
    let two = wait_for(cell, 1, &bert, "orders/4472", 1).await;
    let ship = session(cell, "ship@host-5/1").await;
    let pack = session(cell, "pack@host-6/2").await;
    let print = session(cell, "print@host-7/3").await;
    acquire(cell, &ship, "dock/3").await;
    acquire(cell, &pack, "belt/9").await;
    let three = wait_for(cell, 1, &pack, "dock/3", 1).await;
    let four = wait_for(cell, 1, &print, "belt/9", 1).await;
    for who in [&anna, &bert, &ship, &pack] {
        let body = json!({"session": who, "lock": "pool/connections", "capacity": 8, "request": "pool"});
        cell.call("/v1/lock/acquire", Some(&body)).await;
    }
    let campaign =
        json!({"session": ship, "election": "scheduler", "value": "10.0.0.5:9000", "request": "stand"});
    cell.call("/v1/election/campaign", Some(&campaign)).await;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(60))).await;
    let guard = keeper.lock("jobs/nightly").acquire().await.unwrap();
    Scene { _waits: [one, two, three, four], keeper: (keeper, guard) }
}
