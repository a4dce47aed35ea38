//! Cells restored from one backup give different tokens and versions (S1).

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use lockkeeper_server::backup::token_floor::FloorSource;
use lockkeeper_server::backup::{self, Restored};
use lockkeeper_server::{Node, NodeConfig};
use serde_json::json;

use crate::http::{Client, start};

async fn put(client: Client, body: serde_json::Value) -> u64 {
    client.post("/v1/value/put", body).await.ok()["version"].as_u64().unwrap()
}

/// Uses a cell for a while and returns every token and version that it gave.
async fn work(client: Client, name: &str) -> Vec<u64> {
    let session = client.session().await;
    let mut given = Vec::new();
    for number in 0..20 {
        let lock = format!("{name}-{number}");
        let token = client.take(&session, &lock).await;
        let fence = json!({"lock": lock, "token": token});
        given.push(token);
        given.push(put(client, json!({"key": "fenced", "value": name, "fence": fence})).await);
    }
    given
}

fn restore(folder: &Path, name: &str, floor: FloorSource) -> Restored {
    backup::restore(&folder.join("backup"), &folder.join(name), 1, floor).unwrap()
}

/// Starts a restored cell, uses it and returns every token and version that it gave.
async fn work_of(folder: &Path, name: &str) -> Vec<u64> {
    let mut node = Node::start(NodeConfig::durable(folder.join(name))).await.unwrap();
    let address = node.listen("127.0.0.1:0").await.unwrap();
    let given = work(Client { address }, name).await;
    node.stop().await;
    given
}

fn all_above(given: &[u64], floor: u64) {
    assert!(given.iter().all(|number| *number > floor && *number < 1 << 53), "{given:?} above {floor}");
}

#[tokio::test(flavor = "current_thread")]
async fn two_restores_of_a_backup_give_different_tokens_and_versions() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let (node, client) = start().await;
    let session = client.session().await;
    let held = client.take(&session, "held").await;
    let fence = json!({"lock": "held", "token": held});
    put(client, json!({"key": "kept", "value": "v", "fence": fence})).await;
    fs::write(folder.join("backup"), client.get("/v1/snapshot").await.body).unwrap();
    // The old cell continues after its backup.
    let mut highest = work(client, "old").await.into_iter().max().unwrap();
    node.stop().await;

    let now = SystemTime::now();
    for (name, seconds) in [("first", 0), ("second", 1)] {
        let restored = restore(folder, name, FloorSource::Clock(now + Duration::from_secs(seconds)));
        assert!(restored.floor > highest, "{restored:?} after {highest}");
        let given = work_of(folder, name).await;
        all_above(&given, restored.floor);
        highest = given.into_iter().max().unwrap();
    }

    // An explicit floor, above both.
    let restored = restore(folder, "third", FloorSource::Given(highest + 1_000));
    assert_eq!(restored.floor, highest + 1_000);
    all_above(&work_of(folder, "third").await, highest + 1_000);
}

#[tokio::test(flavor = "current_thread")]
async fn a_restore_without_a_safe_floor_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let (node, client) = start().await;
    let token = client.take(&client.session().await, "held").await;
    fs::write(folder.join("backup"), client.get("/v1/snapshot").await.body).unwrap();
    node.stop().await;
    let an_hour_ago = SystemTime::now() - Duration::from_secs(3_600);
    for (floor, words) in [
        (FloorSource::Clock(SystemTime::UNIX_EPOCH), "before 2026"),
        (FloorSource::Clock(an_hour_ago), "the backup was written at"),
        (FloorSource::Given(token - 1), "the highest token or version in the backup"),
        (FloorSource::Given((1 << 53) - 1), "tokens stay below 2^53"),
    ] {
        let refused = backup::restore(&folder.join("backup"), &folder.join("new"), 1, floor).unwrap_err();
        assert!(refused.to_string().contains(words), "{floor:?}: {refused}");
        assert!(!folder.join("new").exists(), "{floor:?}");
    }
}
