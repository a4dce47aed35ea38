//! Elections, rate limiters and deadlock handling over HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

use super::{Client, PATIENCE, request, start};

const ACQUIRE: &str = "/v1/lock/acquire";
const CAMPAIGN: &str = "/v1/election/campaign";

/// Server-sent events of one election.
struct Observer {
    stream: BufReader<TcpStream>,
}

impl Observer {
    async fn of(client: Client, name: &str) -> Observer {
        let bytes = request("GET", &format!("/v1/election/observe?name={name}"), "", b"");
        Observer { stream: BufReader::new(client.connect(&bytes).await) }
    }

    /// Returns the next event's name and data.
    async fn next(&mut self) -> (String, Value) {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            let read = tokio::time::timeout(PATIENCE, self.stream.read_line(&mut line)).await;
            assert!(read.expect("an event in time").expect("a line") > 0, "the stream has ended");
            if let Some(word) = line.strip_prefix("event: ") {
                name = word.trim().to_owned();
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return (name, serde_json::from_str(data).expect("JSON"));
            }
        }
    }
}

async fn elect(client: Client, session: &str, value: &str) -> u64 {
    let won = client.post(CAMPAIGN, json!({"session": session, "election": "db", "value": value})).await.ok();
    won["epoch"].as_u64().expect("an epoch")
}

#[tokio::test(flavor = "current_thread")]
async fn election_through_campaign_handover_loss_and_resignation() {
    let (_node, client) = start().await;
    let mut observer = Observer::of(client, "db").await;
    assert_eq!(observer.next().await, ("leader".to_owned(), json!({"leader": null, "candidates": 0})));

    let one = client.session_of(10_000, "pod-1").await;
    let two = client.session_of(10_000, "pod-2").await;
    let three = client.session_of(10_000, "pod-3").await;
    let first = elect(client, &one, "10.0.0.1").await;
    let leader = json!({"value": "10.0.0.1", "epoch": first, "owner": "pod-1"});
    assert_eq!(observer.next().await.1["leader"], leader);
    assert_eq!(client.get("/v1/election?name=db").await.ok(), json!({"leader": leader, "candidates": 0}));
    let campaign = json!({"session": two, "election": "db", "value": "10.0.0.2"});
    client.post(CAMPAIGN, campaign).await.refused(409, "busy");

    // Two candidates wait; the leader hands over to the second one.
    let mut waiting = Vec::new();
    for (session, value) in [(&two, "10.0.0.2"), (&three, "10.0.0.3")] {
        let body = json!({"session": session, "election": "db", "value": value, "wait_ms": 60_000});
        waiting.push(client.post_later(CAMPAIGN, body));
        client.until_waiting("election/db", waiting.len() as u64).await;
    }
    let hand_over = |session: &str, epoch: u64, to: &str| {
        client.post_later(
            "/v1/election/handover",
            json!({"session": session, "election": "db", "epoch": epoch, "to": to}),
        )
    };
    hand_over(&one, first, "10.0.0.9").await.unwrap().refused(400, "invalid");
    hand_over(&one, first, "10.0.0.3").await.unwrap().ok();
    let second = waiting.pop().unwrap().await.unwrap().ok()["epoch"].as_u64().unwrap();
    assert!(second > first);
    assert_eq!(observer.next().await.1["leader"]["epoch"], second);
    hand_over(&one, first, "10.0.0.2").await.unwrap().refused(409, "not_held");

    // When the leader's session is lost, the next candidate leads.
    client.post("/v1/session/close", json!({"session": three})).await.ok();
    let third = waiting.pop().unwrap().await.unwrap().ok()["epoch"].as_u64().unwrap();
    assert_eq!(observer.next().await.1["leader"]["value"], "10.0.0.2");

    let resign = |session: &str, epoch: u64| {
        client
            .post_later("/v1/election/resign", json!({"session": session, "election": "db", "epoch": epoch}))
    };
    resign(&one, first).await.unwrap().refused(409, "not_held");
    resign(&two, third).await.unwrap().ok();
    assert_eq!(observer.next().await.1["leader"], Value::Null, "the observer is notified of the vacancy");

    // The same request id is the same candidacy.
    let again = json!({"session": one, "election": "db", "value": "v", "request": "r"});
    let epoch = client.post(CAMPAIGN, again.clone()).await.ok();
    assert_eq!(client.post(CAMPAIGN, again).await.ok(), epoch);
    let long = json!({"session": one, "election": "n".repeat(510), "value": "v"});
    client.post(CAMPAIGN, long).await.refused(413, "too_large");
    let long = json!({"session": one, "election": "x", "value": "v".repeat(4_097)});
    client.post(CAMPAIGN, long).await.refused(413, "too_large");
}

#[tokio::test(flavor = "current_thread")]
async fn rate_limiter_is_shared_by_all_callers() {
    let (_node, client) = start().await;
    let take = |body: Value| async move { client.post("/v1/rate/take", body).await };
    let slow = json!({"limiter": "mail", "rate_per_s": 0.01, "burst": 3});
    for _ in 0..3 {
        assert_eq!(take(slow.clone()).await.ok(), json!({"allowed": true, "retry_after_ms": 0}));
    }
    let denied = take(slow).await.ok();
    assert_eq!(denied["allowed"], false);
    assert!((90_000..=100_000).contains(&denied["retry_after_ms"].as_u64().unwrap()), "{denied}");
    // A retry after the given time is allowed.
    let quick = json!({"limiter": "calls", "rate_per_s": 20, "burst": 1});
    assert_eq!(take(quick.clone()).await.ok()["allowed"], true);
    let denied = take(quick.clone()).await.ok();
    tokio::time::sleep(Duration::from_millis(denied["retry_after_ms"].as_u64().unwrap())).await;
    assert_eq!(take(quick).await.ok()["allowed"], true);
    for wrong in [
        json!({"limiter": "", "rate_per_s": 1, "burst": 1}),
        json!({"limiter": "l", "rate_per_s": 0, "burst": 1}),
        json!({"limiter": "l", "rate_per_s": -1, "burst": 1}),
        json!({"limiter": "l", "rate_per_s": 1e-9, "burst": 1}),
        json!({"limiter": "l", "rate_per_s": 1e10, "burst": 1}),
        json!({"limiter": "l", "rate_per_s": 1, "burst": 0}),
        json!({"limiter": "l", "rate_per_s": 1, "burst": 1, "permits": 0}),
        json!({"limiter": "l", "rate_per_s": 1, "burst": 1, "permits": 2}),
    ] {
        take(wrong).await.refused(400, "invalid");
    }
}

fn acquire(session: &str, lock: &str, scope: &str, policy: &str, wait_ms: u64) -> Value {
    json!({"session": session, "lock": lock, "scope": scope, "policy": policy, "wait_ms": wait_ms})
}

#[tokio::test(flavor = "current_thread")]
async fn request_that_closes_a_cycle_is_refused_with_the_cycle() {
    let (_node, client) = start().await;
    let anna = client.session_of(10_000, "anna").await;
    let ben = client.session_of(10_000, "ben").await;
    client.post(ACQUIRE, acquire(&anna, "a", "t1", "detect", 0)).await.ok();
    let b = client.post(ACQUIRE, acquire(&ben, "b", "t2", "detect", 0)).await.ok();
    let waits = client.post_later(ACQUIRE, acquire(&anna, "b", "t1", "detect", 60_000));
    let seen = client.until_waiting("b", 1).await;
    assert_eq!((&seen["holders"][0]["scope"], &seen["queue"][0]["scope"]), (&json!("t2"), &json!("t1")));
    let error =
        client.post(ACQUIRE, acquire(&ben, "a", "t2", "detect", 60_000)).await.refused(409, "deadlock");
    let cycle = json!([
        {"scope": "t2", "owner": "ben", "lock": "a"},
        {"scope": "t1", "owner": "anna", "lock": "b"},
    ]);
    assert_eq!(error["cycle"], cycle, "{error}");
    client.release(&ben, "b", b["token"].as_u64().unwrap()).await.ok();
    waits.await.unwrap().ok();
}

#[tokio::test(flavor = "current_thread")]
async fn younger_scope_dies_or_is_wounded() {
    let (_node, client) = start().await;
    let old = client.session_of(10_000, "old").await;
    let young = client.session_of(10_000, "young").await;
    client.post(ACQUIRE, acquire(&old, "a", "t1", "wait_die", 0)).await.ok();
    client.post(ACQUIRE, acquire(&young, "a", "t2", "wait_die", 60_000)).await.refused(409, "died");

    let b = client.post(ACQUIRE, acquire(&young, "b", "t2", "wound_wait", 0)).await.ok();
    let taken = client.post(ACQUIRE, acquire(&old, "b", "t1", "wound_wait", 60_000)).await.ok();
    assert!(taken["token"].as_u64() > b["token"].as_u64());
    client.release(&young, "b", b["token"].as_u64().unwrap()).await.refused(409, "not_held");
    client.post(ACQUIRE, acquire(&young, "c", "t2", "wound_wait", 0)).await.refused(409, "wounded");
    client.post(ACQUIRE, acquire(&young, "c", "t2", "wound_wait", 0)).await.ok();
    // Fenced writes of the wounded scope are refused.
    let put = json!({"key": "k", "value": "v", "fence": {"lock": "b", "token": b["token"]}});
    client.post("/v1/value/put", put).await.refused(412, "stale_token");
}
