//! A cell with something to look at.

use std::time::Duration;

use lockkeeper::{Guard, Keeper};
use serde_json::json;

use crate::harness::cell::Cell;
use crate::harness::client::token;
use crate::harness::http::{self, Http};
use crate::harness::until;

/// A name that would be a script if anybody took it for one.
pub const EVIL: &str = "<script>window.hacked = 1</script>";
/// An owner that would be a picture with a script.
pub const EVIL_OWNER: &str = "\"><img src=x onerror=\"window.hacked = 2\">";

/// Opens a session that outlives the test.
pub async fn session(cell: &Cell, owner: &str) -> String {
    let opened = cell.ask("/v1/session/open", Some(&json!({"ttl_ms": 3_600_000, "owner": owner}))).await;
    opened["session"].as_str().unwrap().to_owned()
}

/// Takes a lock that is free.
pub async fn take(cell: &Cell, session: &str, lock: &str) -> u64 {
    let body = json!({"session": session, "lock": lock, "request": format!("take {lock}")});
    token(&cell.ask("/v1/lock/acquire", Some(&body)).await)
}

/// Gives it back.
pub async fn give(cell: &Cell, session: &str, lock: &str, token: u64) {
    cell.ask("/v1/lock/release", Some(&json!({"session": session, "lock": lock, "token": token}))).await;
}

/// Stands in line for a lock, and goes on standing there when this returns. The connection must be kept.
pub async fn wait_for(cell: &Cell, node: u64, session: &str, lock: &str, place: u64) -> Http {
    let mut connection = Http::connect(&cell.node(node).listens).await.unwrap();
    let request = format!("wait {lock} {place}");
    let body = json!({"session": session, "lock": lock, "wait_forever": true, "request": request});
    connection.send_post("/v1/lock/acquire", &body).await.unwrap();
    until(&format!("{place} to wait for {lock}"), async || {
        let path = format!("/v1/lock?name={}", encoded(lock));
        let answer = http::quick_get(&cell.node(node).listens, &path).await?;
        (answer.body["waiting"].as_u64()? >= place).then_some(())
    })
    .await;
    connection
}

/// Of some times, the one in the middle and the longest.
pub fn median_and_slowest(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() - 1])
}

/// A name as part of an address.
pub fn encoded(name: &str) -> String {
    name.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

pub fn address(cell: &Cell, node: u64, hash: &str) -> String {
    format!("http://{}/{hash}", cell.node(node).listens)
}

/// Every view of the console with its address.
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

/// What goes on in a cell in which something goes on. It lasts as long as this is kept.
pub struct Scene {
    _waits: [Http; 4],
    /// A client of our library, which says by itself who it is.
    pub keeper: (Keeper, Guard),
}

/// One node by itself.
pub async fn node() -> Cell {
    let mut cell = Cell::plan(1);
    cell.spawn_all();
    cell.leader().await;
    cell
}

/// Something for every view: a history with an expiry, a ring, a chain, waits that are over, an election.
pub async fn fill(cell: &Cell) -> Scene {
    let brief = json!({"ttl_ms": 200, "owner": "import@host-9/77"});
    let brief = cell.ask("/v1/session/open", Some(&brief)).await["session"].as_str().unwrap().to_owned();
    take(cell, &brief, "orders/4472").await;
    let anna = session(cell, "billing@host-3/4711").await;
    let bert = session(cell, "report@host-1/812").await;
    let waits =
        json!({"session": anna, "lock": "orders/4472", "wait_ms": 30_000, "request": "after the expiry"});
    let mut holder = token(&cell.ask("/v1/lock/acquire", Some(&waits)).await);
    for (who, next) in [(&anna, &bert), (&bert, &anna), (&anna, &bert), (&bert, &anna)] {
        give(cell, who, "orders/4472", holder).await;
        let body = json!({"session": next, "lock": "orders/4472", "request": format!("after {holder}")});
        holder = token(&cell.ask("/v1/lock/acquire", Some(&body)).await);
    }
    take(cell, &bert, "reports/monthly").await;
    // A ring of two, and a chain of its own.
    let one = wait_for(cell, 1, &anna, "reports/monthly", 1).await;
    let two = wait_for(cell, 1, &bert, "orders/4472", 1).await;
    let ship = session(cell, "ship@host-5/1").await;
    let pack = session(cell, "pack@host-6/2").await;
    let print = session(cell, "print@host-7/3").await;
    take(cell, &ship, "dock/3").await;
    take(cell, &pack, "belt/9").await;
    let three = wait_for(cell, 1, &pack, "dock/3", 1).await;
    let four = wait_for(cell, 1, &print, "belt/9", 1).await;
    for who in [&anna, &bert, &ship, &pack] {
        let body = json!({"session": who, "lock": "pool/connections", "capacity": 8, "request": "pool"});
        cell.ask("/v1/lock/acquire", Some(&body)).await;
    }
    let campaign =
        json!({"session": ship, "election": "scheduler", "value": "10.0.0.5:9000", "request": "stand"});
    cell.ask("/v1/election/campaign", Some(&campaign)).await;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(60))).await;
    let guard = keeper.lock("jobs/nightly").acquire().await.unwrap();
    Scene { _waits: [one, two, three, four], keeper: (keeper, guard) }
}
