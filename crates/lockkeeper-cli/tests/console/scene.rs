//! A cell with something to look at.

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

/// A name as part of an address.
pub fn encoded(name: &str) -> String {
    name.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

pub fn address(cell: &Cell, node: u64, hash: &str) -> String {
    format!("http://{}/{hash}", cell.node(node).listens)
}
