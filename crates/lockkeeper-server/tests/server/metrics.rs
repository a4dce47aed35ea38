//! The metrics are what the dashboard, the alerts and the documentation say they are, and no lock's name is a label.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use lockkeeper_server::{Node, NodeConfig};
use serde_json::json;

use crate::http::{Client, start};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All words in a text that could be the name of a metric.
fn named(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("lockkeeper_") && word.len() > "lockkeeper_".len())
        .map(str::to_owned)
        .collect()
}

/// The samples of a scrape, by the names that queries use.
fn samples(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect()
}

/// The names under which the documentation lists them: a histogram once.
fn families(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect()
}

/// A node that has seen something of everything.
async fn busy() -> (Node, Client) {
    let (node, client) = start().await;
    let session = client.session().await;
    let token = client.take(&session, "a/secret/name").await;
    client
        .post("/v1/lock/acquire", json!({"session": session, "lock": "a/secret/name"}))
        .await
        .refused(409, "busy");
    let waits = json!({"session": session, "lock": "a/secret/name", "wait_ms": 10});
    client.post("/v1/lock/acquire", waits).await.refused(408, "timeout");
    client.post("/v1/session/keepalive", json!({"session": session})).await.ok();
    let stale = json!({"key": "k", "value": "v", "fence": {"lock": "a/secret/name", "token": token + 9}});
    client.post("/v1/value/put", stale).await.refused(412, "stale_token");
    client.post("/v1/lock/force_release", json!({"lock": "a/secret/name", "reason": "test"})).await.ok();
    client.post("/v1/session/close", json!({"session": session})).await.ok();
    (node, client)
}

#[tokio::test(flavor = "current_thread")]
async fn dashboard_alerts_and_documentation_name_what_exists() {
    let (_node, client) = busy().await;
    let text = client.get("/metrics").await.text();
    let samples = samples(&text);
    for file in ["deploy/grafana/lockkeeper.json", "deploy/prometheus/alerts.yml"] {
        let unknown: Vec<_> = named(&read(file)).into_iter().filter(|name| !samples.contains(name)).collect();
        assert_eq!(unknown, [""; 0], "{file} names what does not exist");
    }
    let documented = named(&read("docs/observing.md"));
    let known = families(&text);
    let missing: Vec<_> = known.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/observing.md does not tell of {missing:?}");
    let unknown: Vec<_> = documented.iter().filter(|name| !known.contains(*name)).collect();
    assert!(unknown.is_empty(), "docs/observing.md tells of {unknown:?}, which do not exist");
}

#[tokio::test(flavor = "current_thread")]
async fn the_dashboard_is_json_and_every_alert_says_what_it_means() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("deploy/grafana/lockkeeper.json")).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 15);
    let alerts = read("deploy/prometheus/alerts.yml");
    let count = |word: &str| alerts.matches(word).count();
    assert!(count("- alert:") > 10);
    assert_eq!(count("- alert:"), count("summary:"));
    assert_eq!(count("- alert:"), count("severity:"));
    assert_eq!(count("- alert:"), count("expr:"));
}

#[tokio::test(flavor = "current_thread")]
async fn everything_is_counted_and_no_name_is_a_label() {
    let (_node, client) = busy().await;
    let text = client.get("/metrics").await.text();
    assert!(!text.contains("secret"), "the name of a lock is in the metrics");
    for line in [
        "lockkeeper_lock_acquire_wait_seconds_count{mode=\"exclusive\"} 1",
        "lockkeeper_lock_hold_seconds_count 1",
        "lockkeeper_lock_refused_total{reason=\"busy\"} 1",
        "lockkeeper_lock_refused_total{reason=\"timeout\"} 1",
        "lockkeeper_lock_lost_total{reason=\"forced\"} 1",
        "lockkeeper_lock_lost_total{reason=\"session_expired\"} 0",
        "lockkeeper_fenced_writes_rejected_total 1",
        "lockkeeper_sessions_ended_total{reason=\"closed\"} 1",
        "lockkeeper_keep_alives_total 1",
        "lockkeeper_raft_is_leader 1",
        "lockkeeper_raft_has_leader 1",
        "lockkeeper_raft_member_lag_entries{member=\"1\"} 0",
        "lockkeeper_locks 0",
        "lockkeeper_history_events 2",
    ] {
        assert!(text.lines().any(|known| known == line), "{line}:\n{text}");
    }
    let synced = text.lines().find_map(|line| line.strip_prefix("lockkeeper_wal_fsync_seconds_count "));
    assert!(synced.and_then(|count| count.parse::<u64>().ok()) > Some(5), "{synced:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn slow_acquires_are_counted() {
    let config = NodeConfig { slow_acquire: Duration::from_millis(1), ..NodeConfig::in_memory() };
    let mut node = Node::start(config).await.expect("the node starts");
    let client = Client { address: node.listen("127.0.0.1:0").await.expect("the port opens") };
    let session = client.session().await;
    let token = client.take(&session, "l").await;
    let waits = json!({"session": session, "lock": "l", "wait_ms": 60_000});
    let waiting = client.post_later("/v1/lock/acquire", waits);
    client.until("l", "waited for a while", |lock| lock["queue"][0]["waited_ms"].as_u64() > Some(1)).await;
    client.release(&session, "l", token).await.ok();
    waiting.await.unwrap().ok();
    let text = client.get("/metrics").await.text();
    assert!(text.contains("\nlockkeeper_lock_slow_acquires_total 1\n"), "{text}");
}
