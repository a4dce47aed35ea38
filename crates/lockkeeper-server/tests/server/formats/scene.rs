//! Test data: a node with something of everything in its log and in its snapshot.

use std::fs;
use std::path::Path;

use lockkeeper_server::NodeConfig;
use lockkeeper_server::raft::log::{LogConfig, SyncMode};
use serde_json::{Value, json};

use super::Stage;
use super::caller::Caller;

const ACQUIRE: &str = "/v1/lock/acquire";
/// The longest allowed: no session may expire during the test.
const TTL_MS: u64 = 86_400_000;

/// The reads that compare the state of a node.
const READS: &[&str] = &[
    "/v1/locks?prefix=",
    "/v1/value?key=format%2Fvalue",
    "/v1/value?key=format%2Ffenced",
    "/v1/value?key=format%2Flate",
    "/v1/value?key=format%2Fbytes",
    "/v1/election?name=format%2Felection",
    "/v1/history?name=format%2Fexclusive",
    "/v1/history?name=format%2Fforced",
    "/v1/access",
];
/// Fields that change with time.
const VOLATILE: &[&str] =
    &["held_ms", "waited_ms", "ago_ms", "closed_ms", "remaining_ms", "age_ms", "state_bytes_used"];

/// Reads the state of a node, without fields that change with time.
pub(crate) async fn look(client: &Caller) -> Value {
    let mut shown = serde_json::Map::new();
    for path in READS {
        let mut answer = client.get(path).await.ok();
        remove_volatile(&mut answer);
        shown.insert((*path).to_owned(), answer);
    }
    // The leaders and their addresses differ after a restart; the acts of operators do not.
    let mut audit = client.get("/v1/audit").await.ok();
    remove_volatile(&mut audit);
    let lasting = |act: &&Value| act["what"] == "force_release" || act["what"] == "access";
    let acts = audit["acts"].as_array().into_iter().flatten().filter(lasting);
    shown.insert("acts".to_owned(), acts.cloned().collect());
    Value::Object(shown)
}

fn remove_volatile(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|key, _| !VOLATILE.contains(&key.as_str()));
            fields.values_mut().for_each(remove_volatile);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_volatile),
        _ => {}
    }
}

/// Most sessions of `ci`: those of the scene and one more.
const SESSIONS_MAX: u64 = 4;

/// Adds rules, tokens and quotas. Returns the token for the rest of the scene.
async fn admit(root: &Caller) -> String {
    for (identity, prefix, rights) in
        [("ci", "format/", &["acquire"][..]), ("ops", "", &["admin"]), ("*", "format/", &["read"])]
    {
        let rule = json!({"identity": identity, "prefix": prefix, "rights": rights});
        root.post("/v1/access/grant", rule).await.ok();
    }
    for quota in [
        json!({"namespace": "format", "locks": 100, "waiters": 50, "values": 20, "requests_per_s": 1_000}),
        json!({"namespace": "*", "locks": 10}),
        json!({"identity": "ci", "sessions": SESSIONS_MAX}),
    ] {
        root.post("/v1/access/quota", quota).await.ok();
    }
    let made = root.post("/v1/access/token/create", json!({"identity": "ci"})).await.ok();
    made["token"].as_str().unwrap().to_owned()
}

/// Writes the test data.
pub(crate) async fn write(target: &Path) {
    let temporary = tempfile::tempdir().unwrap();
    let log = LogConfig {
        segment_bytes: 16 << 10,
        sync: SyncMode::Inline,
        prepare_ahead: false,
        ..LogConfig::default()
    };
    let stage = Stage::start(NodeConfig { log, ..NodeConfig::durable(temporary.path()) }, true).await;
    let root = stage.root();
    let ci = admit(&root).await;
    let client = stage.ci(&json!({"ci": ci}));

    let one = client.session_of(TTL_MS, "one@format").await;
    let two = client.session_of(TTL_MS, "two@format").await;
    let gone = client.session_of(TTL_MS, "gone@format").await;
    let exclusive = client
        .post(ACQUIRE, json!({"session": one, "lock": "format/exclusive", "request": "r-1", "scope": "work"}))
        .await
        .ok();
    let token = &exclusive["token"];
    client.post(ACQUIRE, json!({"session": one, "lock": "format/shared", "mode": "shared"})).await.ok();
    client.post(ACQUIRE, json!({"session": two, "lock": "format/shared", "mode": "shared"})).await.ok();
    let counted = json!({"session": two, "lock": "format/counted", "capacity": 5, "permits": 2});
    client.post(ACQUIRE, counted).await.ok();
    client
        .post("/v1/lock/acquire_all", json!({"session": two, "locks": ["format/a", "format/b"]}))
        .await
        .ok();
    client
        .post(ACQUIRE, json!({"session": one, "lock": "format/shared", "request": 7}))
        .await
        .refused(409, "busy");
    let delayed = json!({"session": gone, "lock": "format/delayed", "lock_delay_ms": 60_000});
    client.post(ACQUIRE, delayed).await.ok();
    client.post("/v1/value/put", json!({"key": "format/value", "value": "early"})).await.ok();
    let fence = json!({"lock": "format/exclusive", "token": token});
    client.post("/v1/value/put", json!({"key": "format/fenced", "value": "kept", "fence": fence})).await.ok();
    client.post("/v1/value/put", json!({"key": "format/bytes", "value_base64": "AP8A/w=="})).await.ok();
    client.post("/v1/value/put", json!({"key": "format/removed", "value": "soon gone"})).await.ok();
    client.post("/v1/value/delete", json!({"key": "format/removed"})).await.ok();
    let limited = json!({"limiter": "format/limiter", "rate_per_s": 1, "burst": 5, "permits": 3});
    client.post("/v1/rate/take", limited).await.ok();
    let campaign = json!({"session": one, "election": "format/election", "value": "10.0.0.1"});
    client.post("/v1/election/campaign", campaign).await.ok();
    client.take(&two, "format/forced").await;
    let forced = json!({"lock": "format/forced", "reason": "the test wants it"});
    root.post("/v1/lock/force_release", forced).await.ok();
    let waiting = json!({"session": two, "lock": "format/exclusive", "request": "r-2", "wait_forever": true,
        "scope": "other work"});
    let early = client.post_later(ACQUIRE, waiting);
    client.until_waiting("format/exclusive", 1).await;

    fs::create_dir_all(target).unwrap();
    let backup = root.get("/v1/snapshot").await;
    assert_eq!(backup.status, 200);
    fs::write(target.join("backup.snapshot"), backup.body).unwrap();

    // From here on the changes are only in the log.
    client.post("/v1/session/close", json!({"session": gone})).await.ok();
    let brief = client.take(&two, "format/brief").await;
    client
        .post("/v1/lock/release", json!({"session": two, "lock": "format/brief", "token": brief}))
        .await
        .ok();
    let late = json!({"session": two, "lock": "format/exclusive", "request": "r-3", "wait_forever": true});
    let late = client.post_later(ACQUIRE, late);
    client.until_waiting("format/exclusive", 2).await;
    client
        .post("/v1/value/put", json!({"key": "format/value", "value": "newer", "if_version": 1}))
        .await
        .ok();
    client.post("/v1/value/put", json!({"key": "format/late", "value": "late"})).await.ok();

    let rule = json!({"identity": "late", "prefix": "format/late/", "rights": ["read", "force_release"]});
    root.post("/v1/access/grant", rule).await.ok();
    let unused = root.post("/v1/access/token/create", json!({"identity": "late"})).await.ok();
    root.post("/v1/access/token/revoke", json!({"id": unused["id"]})).await.ok();
    root.post("/v1/access/token/create", json!({"identity": "late"})).await.ok();
    root.post("/v1/access/revoke", json!({"identity": "*", "prefix": "format/"})).await.ok();
    root.post("/v1/access/quota", json!({"namespace": "late", "requests_per_s": 7})).await.ok();

    let shown = look(&root).await;
    let expected = json!({"one": one, "two": two, "token": token, "ci": ci, "shown": shown});
    early.abort();
    late.abort();
    stage.node.stop().await;
    let text = serde_json::to_vec_pretty(&expected).unwrap();
    fs::write(target.join("expected.json"), text).unwrap();
    super::copy(temporary.path(), &target.join("folder"));
    fs::remove_file(target.join("folder/lock")).unwrap();
}

/// Checks that the sessions of the old version are alive, their requests are remembered, and the waiter is next.
pub(crate) async fn go_on(client: &Caller, expected: &Value) {
    let (one, two) = (&expected["one"], &expected["two"]);
    client.post("/v1/session/keepalive", json!({"session": one})).await.ok();
    let again = json!({"session": one, "lock": "format/exclusive", "request": "r-1", "scope": "work"});
    assert_eq!(
        client.post(ACQUIRE, again).await.ok()["token"],
        expected["token"],
        "a retry is the same request"
    );
    let release = json!({"session": one, "lock": "format/exclusive", "token": expected["token"]});
    client.post("/v1/lock/release", release).await.ok();
    let next = client
        .post(
            ACQUIRE,
            json!({"session": two, "lock": "format/exclusive", "request": "r-2", "wait_forever": true,
            "scope": "other work"}),
        )
        .await
        .ok();
    assert!(next["token"].as_u64() > expected["token"].as_u64(), "the waiter is next: {next}");
    client.post("/v1/value/put", json!({"key": "format/after", "value": "today"})).await.ok();
}

/// Checks that rules, tokens, quotas and the owners of sessions are still enforced.
pub(crate) async fn check_access(stage: &Stage, expected: &Value) {
    let (root, ci, anonymous) = (stage.root(), stage.ci(expected), Caller::new(stage.client, None));
    anonymous.get("/v1/status").await.refused(401, "unauthenticated");
    let one = &expected["one"];
    root.post("/v1/session/keepalive", json!({"session": one})).await.refused(410, "session_lost");
    ci.post(ACQUIRE, json!({"session": one, "lock": "elsewhere/1"})).await.refused(403, "forbidden");
    ci.get("/v1/access").await.refused(403, "forbidden");
    // Two of the scene are left.
    for _ in 2..SESSIONS_MAX {
        ci.session_of(60_000, "more@format").await;
    }
    let more = ci.post("/v1/session/open", json!({"ttl_ms": 60_000})).await;
    more.refused(429, "limit");
}
