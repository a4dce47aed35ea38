//! The public contract over HTTP: every call and its fine print.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{Client, request, start};

const ACQUIRE: &str = "/v1/lock/acquire";
const ACQUIRE_ALL: &str = "/v1/lock/acquire_all";

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

// ---- sessions -------------------------------------------------------------------------------------------

#[tokio::test(flavor = "current_thread")]
async fn session_opens_is_renewed_and_closes() {
    let (_node, client) = start().await;
    let opened = client.post("/v1/session/open", json!({"ttl_ms": 5000, "owner": "me"})).await.ok();
    assert_eq!(opened["ttl_ms"], 5000);
    let session = opened["session"].as_str().unwrap();
    assert_eq!((session.len(), keys(&opened)), (32, vec!["session", "ttl_ms"]));
    assert_ne!(session, client.session().await);
    let named = json!({"session": session});
    assert_eq!(client.post("/v1/session/keepalive", named.clone()).await.ok(), json!({"ttl_ms": 5000}));

    client.take(session, "a").await;
    let lock = client.lock("a").await;
    assert_eq!(
        (&lock["holders"][0]["owner"], &lock["holders"][0]["session"]),
        (&json!("me"), &json!(session[..8]))
    );
    assert_eq!(client.post("/v1/session/close", named.clone()).await.ok(), json!({}));
    client.until_free("a").await;
    client.post("/v1/session/close", named.clone()).await.refused(410, "session_lost");
    client.post("/v1/session/keepalive", named).await.refused(410, "session_lost");
}

#[tokio::test(flavor = "current_thread")]
async fn every_request_of_a_lost_session_is_answered_session_lost() {
    let (_node, client) = start().await;
    let closed = client.session().await;
    client.post("/v1/session/close", json!({"session": closed})).await.ok();
    let never = "0123456789abcdef0123456789abcdef";
    for session in
        [closed.as_str(), never, "", "x", "../etc", "0123456789abcdef0123456789abcdeg", &"f".repeat(9000)]
    {
        for (path, body) in [
            ("/v1/session/keepalive", json!({"session": session})),
            ("/v1/session/close", json!({"session": session})),
            (ACQUIRE, json!({"session": session, "lock": "a"})),
            (ACQUIRE, json!({"session": session, "lock": "a", "wait_ms": 1000})),
            (ACQUIRE_ALL, json!({"session": session, "locks": ["a", "b"]})),
            ("/v1/lock/release", json!({"session": session, "lock": "a", "token": 1})),
            ("/v1/lock/cancel", json!({"session": session, "request": "r"})),
        ] {
            client.post(path, body).await.refused(410, "session_lost");
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn session_expires_without_keepalives() {
    let (_node, client) = start().await;
    let session = client.session_of(150, "short").await;
    let token = client.take(&session, "a").await;
    client.until_free("a").await;
    client.release(&session, "a", token).await.refused(410, "session_lost");
    client.post("/v1/session/keepalive", json!({"session": session})).await.refused(410, "session_lost");
    let checked = client.post("/v1/token/check", json!({"lock": "a", "token": token})).await.ok();
    assert_eq!(checked["valid"], false);
}

#[tokio::test(flavor = "current_thread")]
async fn keepalives_keep_a_session_alive() {
    let (_node, client) = start().await;
    let session = client.session_of(1_000, "kept").await;
    let token = client.take(&session, "a").await;
    loop {
        client.post("/v1/session/keepalive", json!({"session": session})).await.ok();
        let lock = client.lock("a").await;
        assert_eq!(lock["holders"][0]["token"], token);
        if lock["holders"][0]["held_ms"].as_u64().unwrap() > 2_500 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn session_that_waits_needs_keepalives() {
    let (_node, client) = start().await;
    let holder = client.session().await;
    client.take(&holder, "a").await;
    let waiter = client.session_of(150, "waits").await;
    let body = json!({"session": waiter, "lock": "a", "wait_ms": 60_000});
    client.post(ACQUIRE, body).await.refused(410, "session_lost");
    client.until_waiting("a", 0).await;
}

// ---- acquire and release --------------------------------------------------------------------------------

#[tokio::test(flavor = "current_thread")]
async fn acquire_answer_has_all_fields() {
    let (_node, client) = start().await;
    let session = client.session().await;
    let granted = client.post(ACQUIRE, json!({"session": session, "lock": "orders/4472"})).await.ok();
    let token = granted["token"].as_u64().unwrap();
    assert_eq!(
        granted,
        json!({"lock": "orders/4472", "token": token, "mode": "exclusive",
               "sequencer": format!("lk1:{token}:x:orders/4472")})
    );
    // Null is absent.
    let shared = json!({"session": session, "lock": "b", "mode": "shared", "wait_ms": null, "request": null,
                        "permits": null, "capacity": null, "lock_delay_ms": null, "scope": null,
                        "policy": null, "wait_forever": null});
    let granted = client.post(ACQUIRE, shared).await.ok();
    assert_eq!(granted["mode"], "shared");
    assert!(granted["token"].as_u64().unwrap() > token);
}

#[tokio::test(flavor = "current_thread")]
async fn release_names_the_token() {
    let (_node, client) = start().await;
    let (mine, other) = (client.session().await, client.session().await);
    let token = client.take(&mine, "a").await;
    client.release(&mine, "a", token + 1).await.refused(409, "not_held");
    client.release(&mine, "b", token).await.refused(409, "not_held");
    client.release(&mine, "a", u64::MAX).await.refused(409, "not_held");
    let error = client.release(&other, "a", token).await.refused(409, "not_held");
    assert_eq!(error["lock"], "a");
    assert_eq!(client.lock("a").await["holders"][0]["token"], token);
    assert_eq!(client.release(&mine, "a", token).await.ok(), json!({"released": true}));
    client.release(&mine, "a", token).await.refused(409, "not_held");
    assert!(client.take(&other, "a").await > token);
}

#[tokio::test(flavor = "current_thread")]
async fn each_acquire_is_its_own_owner() {
    let (_node, client) = start().await;
    let session = client.session().await;
    client.take(&session, "a").await;
    let again = json!({"session": session, "lock": "a"});
    let error = client.post(ACQUIRE, again).await.refused(409, "busy");
    assert_eq!(error["lock"], "a");
    let other = json!({"session": session, "lock": "a", "request": "other"});
    client.post(ACQUIRE, other).await.refused(409, "busy");
}

#[tokio::test(flavor = "current_thread")]
async fn the_same_request_id_is_the_same_acquire() {
    let (_node, client) = start().await;
    let session = client.session().await;
    let body = json!({"session": session, "lock": "a", "request": "r-1"});
    let first = client.post(ACQUIRE, body.clone()).await.ok();
    assert_eq!(client.post(ACQUIRE, body.clone()).await.ok(), first);
    assert_eq!(client.lock("a").await["holders"].as_array().unwrap().len(), 1);
    // The answer stays the same after a release: it is not a new acquire.
    client.release(&session, "a", first["token"].as_u64().unwrap()).await.ok();
    assert_eq!(client.post(ACQUIRE, body).await.ok(), first);
    client.until_free("a").await;

    let number = client.post(ACQUIRE, json!({"session": session, "lock": "n", "request": 7})).await.ok();
    let text = client.post(ACQUIRE, json!({"session": session, "lock": "n", "request": "7"})).await.ok();
    assert_eq!(number, text);
    // In another session it is another acquire.
    let other = client.session().await;
    client.post(ACQUIRE, json!({"session": other, "lock": "n", "request": 7})).await.refused(409, "busy");

    for (request, status, code) in [
        (json!("7"), 400, "invalid"),
        (json!(""), 400, "invalid"),
        (json!("~own"), 400, "invalid"),
        (json!(1.5), 400, "invalid"),
        (json!(["r"]), 400, "invalid"),
        (json!("r".repeat(129)), 413, "too_large"),
    ] {
        let body = json!({"session": session, "lock": "elsewhere", "request": request});
        client.post(ACQUIRE, body).await.refused(status, code);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn wait_ms_0_never_waits_even_when_others_wait() {
    let (_node, client) = start().await;
    let (a, b, c) = (client.session().await, client.session().await, client.session().await);
    let shared = json!({"session": a, "lock": "l", "mode": "shared"});
    client.post(ACQUIRE, shared).await.ok();
    let waits = client.post_later(ACQUIRE, json!({"session": b, "lock": "l", "wait_forever": true}));
    client.until_waiting("l", 1).await;
    // It could share the lock with its holder, but another request is queued before it.
    for wait in [json!(0), json!(null)] {
        let body = json!({"session": c, "lock": "l", "mode": "shared", "wait_ms": wait});
        client.post(ACQUIRE, body).await.refused(409, "busy");
    }
    assert_eq!(client.lock("l").await["waiting"], 1);
    waits.abort();
    client.until_waiting("l", 0).await;
}

#[tokio::test(flavor = "current_thread")]
async fn wait_that_times_out_leaves_the_queue() {
    let (_node, client) = start().await;
    let (a, b) = (client.session().await, client.session().await);
    let token = client.take(&a, "l").await;
    let body = json!({"session": b, "lock": "l", "wait_ms": 60});
    let error = client.post(ACQUIRE, body).await.refused(408, "timeout");
    assert_eq!(error["lock"], "l");
    let lock = client.lock("l").await;
    assert_eq!((&lock["waiting"], &lock["queue"]), (&json!(0), &json!([])));
    client.release(&a, "l", token).await.ok();
    assert_eq!(client.lock("l").await["holders"], json!([]));
}

#[tokio::test(flavor = "current_thread")]
async fn waiters_are_granted_in_order_of_arrival() {
    let (_node, client) = start().await;
    let holder = client.session().await;
    let mut token = client.take(&holder, "l").await;
    let mut waits = Vec::new();
    for place in 1..=3 {
        let session = client.session_of(60_000, &format!("w{place}")).await;
        let body = json!({"session": session, "lock": "l", "wait_ms": 30_000});
        waits.push((session, client.post_later(ACQUIRE, body)));
        client.until_waiting("l", place).await;
    }
    let lock = client.lock("l").await;
    let queue = lock["queue"].as_array().unwrap();
    let order: Vec<_> = queue.iter().map(|one| (one["position"].as_u64(), one["owner"].as_str())).collect();
    assert_eq!(order, [(Some(1), Some("w1")), (Some(2), Some("w2")), (Some(3), Some("w3"))]);
    assert_eq!(keys(&queue[0]), ["mode", "owner", "position", "session", "waited_ms"]);
    assert_eq!(keys(&lock["holders"][0]), ["held_ms", "mode", "owner", "permits", "session", "token"]);

    let mut holding = holder;
    for (session, wait) in waits {
        client.release(&holding, "l", token).await.ok();
        let granted = wait.await.unwrap().ok();
        assert!(granted["token"].as_u64().unwrap() > token);
        token = granted["token"].as_u64().unwrap();
        assert_eq!(client.lock("l").await["holders"][0]["session"], session[..8]);
        holding = session;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn cancel_ends_a_wait_and_releases_a_grant() {
    let (_node, client) = start().await;
    let (a, b) = (client.session().await, client.session().await);
    let token = client.take(&a, "l").await;
    let body = json!({"session": b, "lock": "l", "wait_forever": true, "request": "r"});
    let wait = client.post_later(ACQUIRE, body);
    client.until_waiting("l", 1).await;
    let cancel = json!({"session": b, "request": "r"});
    assert_eq!(client.post("/v1/lock/cancel", cancel.clone()).await.ok(), json!({}));
    wait.await.unwrap().refused(408, "timeout");
    assert_eq!(client.lock("l").await["waiting"], 0);
    assert_eq!(client.post("/v1/lock/cancel", cancel).await.ok(), json!({}));

    client.release(&a, "l", token).await.ok();
    client.post(ACQUIRE, json!({"session": b, "lock": "l", "request": 2})).await.ok();
    client.post("/v1/lock/cancel", json!({"session": b, "request": 2})).await.ok();
    assert_eq!(client.lock("l").await["holders"], json!([]));
    client.post("/v1/lock/cancel", json!({"session": b, "request": ""})).await.refused(400, "invalid");
}

#[tokio::test(flavor = "current_thread")]
async fn shared_holders_exclude_exclusive_ones() {
    let (_node, client) = start().await;
    let session = client.session().await;
    let shared = json!({"session": session, "lock": "l", "mode": "shared"});
    client.post(ACQUIRE, shared.clone()).await.ok();
    let second = client.post(ACQUIRE, shared).await.ok();
    assert_eq!(second["sequencer"], format!("lk1:{}:s:l", second["token"]));
    client.post(ACQUIRE, json!({"session": session, "lock": "l"})).await.refused(409, "busy");
    let lock = client.lock("l").await;
    assert_eq!((lock["holders"].as_array().unwrap().len(), &lock["capacity"]), (2, &json!(1)));
}

#[tokio::test(flavor = "current_thread")]
async fn capacity_is_fixed_by_the_first_acquire() {
    let (_node, client) = start().await;
    let session = client.session().await;
    let ask = |extra: Value| {
        let mut body = json!({"session": session, "lock": "pool"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        client.post(ACQUIRE, body)
    };
    for more_than_capacity in [json!({"permits": 2}), json!({"permits": 4, "capacity": 3})] {
        ask(more_than_capacity).await.refused(400, "invalid");
    }
    for nonsense in [json!({"permits": 0}), json!({"capacity": 0}), json!({"capacity": 1_000_001})] {
        ask(nonsense).await.refused(400, "invalid");
    }
    let two = ask(json!({"permits": 2, "capacity": 3})).await.ok();
    assert_eq!(client.lock("pool").await["capacity"], 3);
    assert_eq!(client.lock("pool").await["holders"][0]["permits"], 2);
    ask(json!({"permits": 2})).await.refused(409, "busy");
    ask(json!({"permits": 1, "capacity": 4})).await.refused(400, "invalid");
    ask(json!({"permits": 4})).await.refused(400, "invalid");
    let one = ask(json!({"capacity": 3})).await.ok();
    ask(json!({"permits": 1})).await.refused(409, "busy");
    for granted in [two, one] {
        client.release(&session, "pool", granted["token"].as_u64().unwrap()).await.ok();
    }
    // Free and without waiters: the capacity is forgotten.
    assert_eq!(client.lock("pool").await["capacity"], 1);
    ask(json!({"capacity": 9})).await.ok();
    assert_eq!(client.lock("pool").await["capacity"], 9);
}

#[tokio::test(flavor = "current_thread")]
async fn lock_delay_keeps_the_lock_closed_after_its_session_expires() {
    let (_node, client) = start().await;
    let dies = client.session_of(120, "dies").await;
    let body = json!({"session": dies, "lock": "l", "lock_delay_ms": 1500});
    client.post(ACQUIRE, body).await.ok();
    let lock = client.until_free("l").await;
    assert!(lock["closed_ms"].as_u64().unwrap() > 0, "{lock}");
    let next = client.session().await;
    client.post(ACQUIRE, json!({"session": next, "lock": "l"})).await.refused(409, "busy");
    client.post(ACQUIRE, json!({"session": next, "lock": "l", "wait_ms": 10_000})).await.ok();
    let too_long = json!({"session": next, "lock": "m", "lock_delay_ms": 60_001});
    client.post(ACQUIRE, too_long).await.refused(400, "invalid");
}

#[tokio::test(flavor = "current_thread")]
async fn modes_scopes_and_policies_are_validated() {
    let (_node, client) = start().await;
    let session = client.session().await;
    for (extra, status, code) in [
        (json!({"policy": "wait_die"}), 400, "invalid"),
        (json!({"scope": "", "policy": "wound_wait"}), 400, "invalid"),
        (json!({"scope": "s", "policy": "hope"}), 400, "invalid"),
        (json!({"scope": "s".repeat(513)}), 413, "too_large"),
        (json!({"scope": 1}), 400, "invalid"),
        (json!({"mode": "both"}), 400, "invalid"),
        (json!({"mode": "EXCLUSIVE"}), 400, "invalid"),
        (json!({"mode": ""}), 400, "invalid"),
    ] {
        let mut body = json!({"session": session, "lock": "l"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        client.post(ACQUIRE, body).await.refused(status, code);
    }
    assert_eq!(client.lock("l").await["holders"], json!([]));
}

// ---- acquire_all ----------------------------------------------------------------------------------------

#[tokio::test(flavor = "current_thread")]
async fn acquire_all_gives_one_token_and_each_lock_is_released_with_it() {
    let (_node, client) = start().await;
    let session = client.session().await;
    let granted = client.post(ACQUIRE_ALL, json!({"session": session, "locks": ["b", "a", "b"]})).await.ok();
    let token = granted["token"].as_u64().unwrap();
    assert_eq!(granted["locks"], json!(["a", "b"]));
    assert_eq!(granted["sequencers"], json!([format!("lk1:{token}:x:a"), format!("lk1:{token}:x:b")]));
    for (at, lock) in ["a", "b"].into_iter().enumerate() {
        assert_eq!(client.lock(lock).await["holders"][0]["token"], token);
        let sequencer = json!({"sequencer": granted["sequencers"][at]});
        assert_eq!(client.post("/v1/token/check", sequencer).await.ok()["valid"], true);
    }
    client.release(&session, "a", token).await.ok();
    assert_eq!(client.lock("a").await["holders"], json!([]));
    assert_eq!(client.lock("b").await["holders"][0]["token"], token);
    client.release(&session, "a", token).await.refused(409, "not_held");
    client.release(&session, "b", token).await.ok();
}

#[tokio::test(flavor = "current_thread")]
async fn acquire_all_is_all_or_nothing() {
    let (_node, client) = start().await;
    let (a, b) = (client.session().await, client.session().await);
    let token = client.take(&a, "y").await;
    let both = json!({"session": b, "locks": ["x", "y"]});
    let error = client.post(ACQUIRE_ALL, both.clone()).await.refused(409, "busy");
    assert_eq!(error["lock"], "y");
    assert_eq!(client.lock("x").await["holders"], json!([]));
    let mut patient = both.clone();
    patient["wait_ms"] = json!(50);
    client.post(ACQUIRE_ALL, patient.clone()).await.refused(408, "timeout");
    patient["wait_ms"] = json!(30_000);
    patient["request"] = json!("r");
    let wait = client.post_later(ACQUIRE_ALL, patient.clone());
    client.until_waiting("y", 1).await;
    client.release(&a, "y", token).await.ok();
    let granted = wait.await.unwrap().ok();
    assert_eq!(client.post(ACQUIRE_ALL, patient).await.ok(), granted);

    let ask = |locks: Value| client.post(ACQUIRE_ALL, json!({"session": b, "locks": locks}));
    ask(json!([])).await.refused(400, "invalid");
    ask(json!([""])).await.refused(400, "invalid");
    ask(json!("x")).await.refused(400, "invalid");
    ask(json!([1])).await.refused(400, "invalid");
    ask((0..129).map(|n| format!("l{n}")).collect::<Vec<_>>().into()).await.refused(429, "limit");
    let one = ask(json!(["alone"])).await.ok();
    assert_eq!(one["locks"], json!(["alone"]));
}

// ---- callers that disconnect ----------------------------------------------------------------------------

async fn waiting_caller(client: Client, path: &str, body: Value) -> tokio::net::TcpStream {
    let stream = client.connect(&request("POST", path, "", body.to_string().as_bytes())).await;
    client.until_waiting("l", 1).await;
    stream
}

#[tokio::test(flavor = "current_thread")]
async fn disconnected_caller_without_a_request_id_leaves_the_queue() {
    let (_node, client) = start().await;
    let (a, b) = (client.session().await, client.session().await);
    client.take(&a, "l").await;
    let one = json!({"session": b, "lock": "l", "wait_ms": 600_000});
    let forever = json!({"session": b, "lock": "l", "wait_forever": true});
    let many = json!({"session": b, "locks": ["k", "l"], "wait_ms": 600_000});
    for (path, body) in [(ACQUIRE, one.clone()), (ACQUIRE, forever), (ACQUIRE_ALL, many)] {
        drop(waiting_caller(client, path, body).await);
        client.until_waiting("l", 0).await;
    }
    // A half-closed connection counts as closed: the node cannot tell them apart.
    let mut half = waiting_caller(client, ACQUIRE, one).await;
    half.shutdown().await.unwrap();
    client.until_waiting("l", 0).await;
    // None of these waits holds the lock later.
    client.post("/v1/lock/force_release", json!({"lock": "l", "reason": "test"})).await.ok();
    assert_eq!(client.lock("l").await["holders"], json!([]));
}

#[tokio::test(flavor = "current_thread")]
async fn disconnected_caller_with_a_request_id_keeps_its_place_and_finds_its_grant() {
    let (_node, client) = start().await;
    let (a, b, c) = (client.session().await, client.session().await, client.session().await);
    let token = client.take(&a, "l").await;
    let body = json!({"session": b, "lock": "l", "wait_ms": 600_000, "request": "r"});
    drop(waiting_caller(client, ACQUIRE, body.clone()).await);
    // Another request queues behind it, so that the node has surely noticed the disconnect.
    let behind = client.post_later(ACQUIRE, json!({"session": c, "lock": "l", "wait_ms": 600_000}));
    let lock = client.until_waiting("l", 2).await;
    assert_eq!(lock["queue"][0]["session"], b[..8]);
    // It retries while the request still waits, and has the same place.
    let back = client.post_later(ACQUIRE, body.clone());
    client.release(&a, "l", token).await.ok();
    let granted = back.await.unwrap().ok();
    assert_eq!(client.lock("l").await["holders"][0]["session"], b[..8]);
    // And again after the grant.
    assert_eq!(client.post(ACQUIRE, body).await.ok(), granted);
    client.release(&b, "l", granted["token"].as_u64().unwrap()).await.ok();
    behind.await.unwrap().ok();
}

#[tokio::test(flavor = "current_thread")]
async fn grant_after_a_disconnect_is_found_with_its_request_id() {
    let (_node, client) = start().await;
    let (a, b) = (client.session().await, client.session().await);
    let token = client.take(&a, "l").await;
    let body = json!({"session": b, "lock": "l", "wait_ms": 600_000, "request": "r"});
    drop(waiting_caller(client, ACQUIRE, body.clone()).await);
    client.release(&a, "l", token).await.ok();
    let lock =
        client.until("l", "held by the waiter", |lock| lock["holders"][0]["session"] == json!(b[..8])).await;
    assert_eq!(client.post(ACQUIRE, body).await.ok()["token"], lock["holders"][0]["token"]);
}
