//! The metrics match the dashboard, the alerts and the documentation, and no lock name is a label.

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

/// Returns all words in a text that look like the name of a metric.
fn named(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("lockkeeper_") && word.len() > "lockkeeper_".len())
        .map(str::to_owned)
        .collect()
}

/// Returns the sample names of a scrape, as queries use them.
fn samples(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect()
}

/// Returns the metric names of a scrape, as the documentation lists them.
fn families(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect()
}

/// Returns the values of a label in the documentation's table.
fn documented_values(row: &str) -> BTreeSet<String> {
    row.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the values of a label in a scrape.
fn printed_values(text: &str, metric: &str, label: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
    let of = |line: &str| Some(line.split_once(&format!("{label}=\""))?.1.split_once('"')?.0.to_owned());
    lines.filter_map(of).collect()
}

/// Starts a node and uses most of its features.
async fn used_node() -> (Node, Client) {
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
    let (_node, client) = used_node().await;
    let text = client.get("/metrics").await.text();
    let samples = samples(&text);
    for file in ["deploy/grafana/lockkeeper.json", "deploy/prometheus/alerts.yml"] {
        let unknown: Vec<_> = named(&read(file)).into_iter().filter(|name| !samples.contains(name)).collect();
        assert_eq!(unknown, [""; 0], "{file} names what does not exist");
    }
    let documented = named(&read("docs/observing.md"));
    let known = families(&text);
    let missing: Vec<_> = known.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/observing.md does not document {missing:?}");
    // Has a value for each other member: the test of upgrades reads it in a cell of three.
    let of_other_members = "lockkeeper_member_message_format";
    let unknown: Vec<_> =
        documented.iter().filter(|name| !known.contains(*name) && *name != of_other_members).collect();
    assert!(unknown.is_empty(), "docs/observing.md documents {unknown:?}, which do not exist");
}

#[tokio::test(flavor = "current_thread")]
async fn dashboard_is_json_and_every_alert_has_a_summary() {
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
async fn operations_are_counted_and_no_lock_name_is_a_label() {
    let (_node, client) = used_node().await;
    let text = client.get("/metrics").await.text();
    assert!(!text.contains("secret"), "the name of a lock is in the metrics");
    for line in [
        "lockkeeper_lock_acquire_wait_seconds_count{mode=\"exclusive\",outcome=\"granted\"} 1",
        "lockkeeper_lock_acquire_wait_seconds_count{mode=\"exclusive\",outcome=\"refused\"} 1",
        "lockkeeper_lock_acquire_wait_seconds_count{mode=\"exclusive\",outcome=\"timeout\"} 1",
        "lockkeeper_lock_acquire_wait_seconds_count{mode=\"shared\",outcome=\"granted\"} 0",
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

/// A family without samples is not printed, so the check against the documentation would miss it.
#[tokio::test(flavor = "current_thread")]
async fn every_family_and_label_value_is_printed_from_the_start() {
    let (_node, client) = start().await;
    let text = client.get("/metrics").await.text();
    let printed = families(&text);
    for file in ["metrics/mod.rs", "metrics/acquires.rs"] {
        let source = read(&format!("crates/lockkeeper-server/src/{file}"));
        let names = source
            .split("register(")
            .skip(1)
            .filter_map(|call| call.trim_start().strip_prefix('"').and_then(|call| call.split('"').next()));
        for name in names {
            let name = format!("lockkeeper_{name}");
            let known = ["", "_total", "_info"].iter().any(|end| printed.contains(&format!("{name}{end}")));
            assert!(known, "{name} is registered in {file}, but a fresh node does not print it");
        }
    }
    let docs = read("docs/observing.md");
    for (metric, label) in [
        ("lockkeeper_lock_acquire_wait_seconds", "outcome"),
        ("lockkeeper_lock_refused_total", "reason"),
        ("lockkeeper_lock_lost_total", "reason"),
        ("lockkeeper_sessions_ended_total", "reason"),
        ("lockkeeper_turned_away_total", "reason"),
    ] {
        let row = docs.lines().find(|line| line.starts_with(&format!("| `{metric}{{"))).unwrap();
        let row = row.split(" | ").nth(1).unwrap();
        let sample = if label == "outcome" { format!("{metric}_count") } else { metric.to_owned() };
        assert_eq!(
            printed_values(&text, &sample, label),
            documented_values(row),
            "{metric}: printed values, and documented values"
        );
    }
}

#[tokio::test(flavor = "current_thread")]
async fn lost_grants_and_waits_without_a_grant_are_counted() {
    let (_node, client) = start().await;
    let scoped = |session: &str, lock: &str, scope: &str| {
        let policy = "wound_wait";
        json!({"session": session, "lock": lock, "scope": scope, "policy": policy, "wait_ms": 60_000})
    };
    let (old, young) = (client.session().await, client.session().await);
    client.post("/v1/lock/acquire", scoped(&old, "a", "first")).await.ok();
    client.post("/v1/lock/acquire", scoped(&young, "b", "second")).await.ok();
    client.post("/v1/lock/acquire", scoped(&old, "b", "first")).await.ok();
    let brief = client.session_of(100, "brief").await;
    client.take(&brief, "c").await;
    client.until_free("c").await;
    client.take(&old, "d").await;
    for request in ["cancelled", "abandoned"] {
        let waits =
            json!({"session": young, "lock": "d", "mode": "shared", "wait_ms": 60_000, "request": request});
        let waiting = client.post_later("/v1/lock/acquire", waits);
        client
            .until("d", "waited for a while", |lock| lock["queue"][0]["waited_ms"].as_u64() > Some(1))
            .await;
        match request {
            "cancelled" => {
                client.post("/v1/lock/cancel", json!({"session": young, "request": request})).await
            }
            _ => client.post("/v1/session/close", json!({"session": young})).await,
        }
        .ok();
        waiting.await.unwrap();
    }
    let text = client.get("/metrics").await.text();
    for line in [
        "lockkeeper_lock_lost_total{reason=\"session_expired\"} 1",
        "lockkeeper_lock_lost_total{reason=\"wounded\"} 1",
        "lockkeeper_lock_lost_total{reason=\"forced\"} 0",
        "lockkeeper_sessions_ended_total{reason=\"expired\"} 1",
        "lockkeeper_lock_acquire_wait_seconds_count{mode=\"shared\",outcome=\"cancelled\"} 1",
        "lockkeeper_lock_acquire_wait_seconds_count{mode=\"shared\",outcome=\"session_ended\"} 1",
        "lockkeeper_lock_acquire_wait_seconds_count{mode=\"shared\",outcome=\"timeout\"} 0",
        "lockkeeper_lock_acquire_wait_seconds_count{mode=\"exclusive\",outcome=\"granted\"} 5",
    ] {
        assert!(text.lines().any(|known| known == line), "{line}:\n{text}");
    }
    for outcome in ["cancelled", "session_ended"] {
        let sum =
            format!("lockkeeper_lock_acquire_wait_seconds_sum{{mode=\"shared\",outcome=\"{outcome}\"}} ");
        let waited = text.lines().find_map(|line| line.strip_prefix(&sum));
        assert!(waited.and_then(|sum| sum.parse::<f64>().ok()) >= Some(0.002), "{outcome}: {waited:?}");
    }
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
