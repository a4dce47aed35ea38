//! The public contract over HTTP: every call, and every sentence of the fine print that this version keeps.

#[path = "common/http.rs"]
mod http;

use std::time::Duration;

use http::{Client, request, start};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const ACQUIRE: &str = "/v1/lock/acquire";
const ACQUIRE_ALL: &str = "/v1/lock/acquire_all";

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

// ---- sessions -------------------------------------------------------------------------------------------

#[tokio::test(flavor = "current_thread")]
async fn a_session_opens_lives_and_closes() {
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
        (&json!("me"), &json!(session))
    );
    assert_eq!(client.post("/v1/session/close", named.clone()).await.ok(), json!({}));
    client.until_free("a").await;
    client.post("/v1/session/close", named.clone()).await.refused(410, "session_lost");
    client.post("/v1/session/keepalive", named).await.refused(410, "session_lost");
}

#[tokio::test(flavor = "current_thread")]
async fn whatever_belongs_to_a_lost_session_is_answered_so() {
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
async fn a_session_expires_by_itself() {
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
async fn keepalives_keep_it_alive() {
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
async fn a_waiting_session_needs_keepalives_too() {
    let (_node, client) = start().await;
    let holder = client.session().await;
    client.take(&holder, "a").await;
    let waiter = client.session_of(150, "waits").await;
    let asked = json!({"session": waiter, "lock": "a", "wait_ms": 60_000});
    client.post(ACQUIRE, asked).await.refused(410, "session_lost");
    client.until_waiting("a", 0).await;
}

// ---- acquire and release --------------------------------------------------------------------------------

#[tokio::test(flavor = "current_thread")]
async fn acquire_answers_with_all_its_fields() {
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
    let asked = json!({"session": session, "lock": "a", "request": "r-1"});
    let first = client.post(ACQUIRE, asked.clone()).await.ok();
    assert_eq!(client.post(ACQUIRE, asked.clone()).await.ok(), first);
    assert_eq!(client.lock("a").await["holders"].as_array().unwrap().len(), 1);
    // The answer stays the same when the lock was given back: it is no new acquire.
    client.release(&session, "a", first["token"].as_u64().unwrap()).await.ok();
    assert_eq!(client.post(ACQUIRE, asked).await.ok(), first);
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
        let asked = json!({"session": session, "lock": "elsewhere", "request": request});
        client.post(ACQUIRE, asked).await.refused(status, code);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn wait_0_never_waits_also_when_others_wait() {
    let (_node, client) = start().await;
    let (a, b, c) = (client.session().await, client.session().await, client.session().await);
    let shared = json!({"session": a, "lock": "l", "mode": "shared"});
    client.post(ACQUIRE, shared).await.ok();
    let waits = client.post_later(ACQUIRE, json!({"session": b, "lock": "l", "wait_forever": true}));
    client.until_waiting("l", 1).await;
    // It could share the lock with its holder, but another is before it.
    for wait in [json!(0), json!(null)] {
        let asked = json!({"session": c, "lock": "l", "mode": "shared", "wait_ms": wait});
        client.post(ACQUIRE, asked).await.refused(409, "busy");
    }
    assert_eq!(client.lock("l").await["waiting"], 1);
    waits.abort();
    client.until_waiting("l", 0).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_wait_that_ends_leaves_the_queue() {
    let (_node, client) = start().await;
    let (a, b) = (client.session().await, client.session().await);
    let token = client.take(&a, "l").await;
    let asked = json!({"session": b, "lock": "l", "wait_ms": 60});
    let error = client.post(ACQUIRE, asked).await.refused(408, "timeout");
    assert_eq!(error["lock"], "l");
    let lock = client.lock("l").await;
    assert_eq!((&lock["waiting"], &lock["queue"]), (&json!(0), &json!([])));
    client.release(&a, "l", token).await.ok();
    assert_eq!(client.lock("l").await["holders"], json!([]));
}

#[tokio::test(flavor = "current_thread")]
async fn waiters_are_let_in_in_the_order_of_their_arrival() {
    let (_node, client) = start().await;
    let holder = client.session().await;
    let mut token = client.take(&holder, "l").await;
    let mut waits = Vec::new();
    for place in 1..=3 {
        let session = client.session_of(60_000, &format!("w{place}")).await;
        let asked = json!({"session": session, "lock": "l", "wait_ms": 30_000});
        waits.push((session, client.post_later(ACQUIRE, asked)));
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
        assert_eq!(client.lock("l").await["holders"][0]["session"], session);
        holding = session;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_wait_can_be_cancelled_and_a_grant_given_back() {
    let (_node, client) = start().await;
    let (a, b) = (client.session().await, client.session().await);
    let token = client.take(&a, "l").await;
    let asked = json!({"session": b, "lock": "l", "wait_forever": true, "request": "r"});
    let wait = client.post_later(ACQUIRE, asked);
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
async fn capacity_is_fixed_by_whoever_opens_the_lock() {
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
    // Free, and nobody waits: forgotten.
    assert_eq!(client.lock("pool").await["capacity"], 1);
    ask(json!({"capacity": 9})).await.ok();
    assert_eq!(client.lock("pool").await["capacity"], 9);
}

#[tokio::test(flavor = "current_thread")]
async fn a_lock_delay_keeps_the_lock_closed_after_a_death() {
    let (_node, client) = start().await;
    let dies = client.session_of(120, "dies").await;
    let asked = json!({"session": dies, "lock": "l", "lock_delay_ms": 1500});
    client.post(ACQUIRE, asked).await.ok();
    let lock = client.until_free("l").await;
    assert!(lock["closed_ms"].as_u64().unwrap() > 0, "{lock}");
    let next = client.session().await;
    client.post(ACQUIRE, json!({"session": next, "lock": "l"})).await.refused(409, "busy");
    client.post(ACQUIRE, json!({"session": next, "lock": "l", "wait_ms": 10_000})).await.ok();
    let too_long = json!({"session": next, "lock": "m", "lock_delay_ms": 60_001});
    client.post(ACQUIRE, too_long).await.refused(400, "invalid");
}

#[tokio::test(flavor = "current_thread")]
async fn scopes_and_policies_are_not_supported_but_read() {
    let (_node, client) = start().await;
    let session = client.session().await;
    for (extra, status, code) in [
        (json!({"scope": "s"}), 501, "unsupported"),
        (json!({"policy": "detect"}), 501, "unsupported"),
        (json!({"scope": "s", "policy": "wait_die"}), 501, "unsupported"),
        (json!({"scope": "s", "policy": "wound_wait"}), 501, "unsupported"),
        (json!({"policy": "hope"}), 400, "invalid"),
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

// ---- force_release and tokens ---------------------------------------------------------------------------

#[tokio::test(flavor = "current_thread")]
async fn force_release_frees_the_lock_and_raises_its_last_token() {
    let (_node, client) = start().await;
    let (a, b) = (client.session().await, client.session().await);
    let token = client.take(&a, "l").await;
    let force = json!({"lock": "l", "reason": "host is gone"});
    let forced = client.post("/v1/lock/force_release", force.clone()).await.ok();
    let last = forced["last_token"].as_u64().unwrap();
    assert_eq!((&forced["released"], keys(&forced)), (&json!(true), vec!["last_token", "released"]));
    assert!(last > token);
    assert_eq!(client.lock("l").await["last_token"], last);
    // The former holder is stale at every gate.
    client.release(&a, "l", token).await.refused(409, "not_held");
    let checked = client.post("/v1/token/check", json!({"lock": "l", "token": token})).await.ok();
    assert_eq!(checked, json!({"valid": false, "last_token": last}));
    let write = json!({"key": "k", "value": "v", "fence": {"lock": "l", "token": token}});
    let error = client.post("/v1/value/put", write).await.refused(412, "stale_token");
    assert_eq!(error["last_token"], last);

    let forced = client.post("/v1/lock/force_release", force.clone()).await.ok();
    assert_eq!(forced["released"], false);
    assert!(forced["last_token"].as_u64().unwrap() > last);

    // Who waits is let in, above the raised token.
    client.take(&a, "l").await;
    let wait = client.post_later(ACQUIRE, json!({"session": b, "lock": "l", "wait_ms": 30_000}));
    client.until_waiting("l", 1).await;
    let forced = client.post("/v1/lock/force_release", force).await.ok();
    let granted = wait.await.unwrap().ok();
    assert!(granted["token"].as_u64() >= forced["last_token"].as_u64());
    let long = json!({"lock": "l", "reason": "x".repeat(1025)});
    client.post("/v1/lock/force_release", long).await.refused(413, "too_large");
}

#[tokio::test(flavor = "current_thread")]
async fn a_token_is_checked_by_lock_or_by_sequencer() {
    let (_node, client) = start().await;
    let session = client.session().await;
    let name = "größe: 100% a/b?";
    let granted = client.post(ACQUIRE, json!({"session": session, "lock": name})).await.ok();
    let token = granted["token"].as_u64().unwrap();
    let check = |body: Value| client.post("/v1/token/check", body);
    let valid = json!({"valid": true, "last_token": token});
    assert_eq!(check(json!({"lock": name, "token": token})).await.ok(), valid);
    assert_eq!(check(json!({"sequencer": granted["sequencer"]})).await.ok(), valid);
    assert_eq!(check(json!({"lock": name, "token": token + 1})).await.ok()["valid"], false);
    assert_eq!(check(json!({"lock": "unheard of", "token": token})).await.ok()["valid"], false);
    client.release(&session, name, token).await.ok();
    let over = check(json!({"sequencer": granted["sequencer"]})).await.ok();
    assert_eq!(over, json!({"valid": false, "last_token": token}));
    for nonsense in [
        json!({}),
        json!({"lock": "l"}),
        json!({"token": 1}),
        json!({"lock": "l", "token": 1, "sequencer": "lk1:1:x:l"}),
        json!({"sequencer": ""}),
        json!({"sequencer": "lk1:x"}),
        json!({"sequencer": "lk1:9007199254740992:x:l"}),
        json!({"lock": "", "token": 1}),
        json!({"lock": "l", "token": "1"}),
    ] {
        check(nonsense).await.refused(400, "invalid");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn tokens_rise_over_all_locks() {
    let (_node, client) = start().await;
    let session = client.session().await;
    let mut last = 0;
    for name in ["a", "b", "a2", "c"] {
        let token = client.take(&session, name).await;
        assert!(token > last && token < 1 << 53);
        last = token;
    }
    assert_eq!(client.get("/v1/status").await.ok()["last_token"], last);
}

// ---- values ---------------------------------------------------------------------------------------------

#[tokio::test(flavor = "current_thread")]
async fn values_have_versions() {
    let (_node, client) = start().await;
    let put = |body: Value| client.post("/v1/value/put", body);
    let absent = json!({"key": "k", "value": null, "version": 0, "token": 0});
    assert_eq!(client.get("/v1/value?key=k").await.ok(), absent);
    assert_eq!(put(json!({"key": "k", "value": "one", "if_version": 0})).await.ok(), json!({"version": 1}));
    let error =
        put(json!({"key": "k", "value": "two", "if_version": 0})).await.refused(412, "version_mismatch");
    assert_eq!(error["version"], 1);
    assert_eq!(put(json!({"key": "k", "value": "", "if_version": 1})).await.ok()["version"], 2);
    let read = json!({"key": "k", "value": "", "version": 2, "token": 0});
    assert_eq!(client.get("/v1/value?key=k").await.ok(), read);
    let delete = |version: u64| client.post("/v1/value/delete", json!({"key": "k", "if_version": version}));
    delete(1).await.refused(412, "version_mismatch");
    assert_eq!(delete(2).await.ok(), json!({}));
    assert_eq!(client.get("/v1/value?key=k").await.ok(), absent);
    // An old version never comes back.
    assert_eq!(put(json!({"key": "k", "value": "new"})).await.ok()["version"], 3);

    put(json!({"key": "k", "value": "x".repeat(65_536)})).await.ok();
    put(json!({"key": "k", "value": "x".repeat(65_537)})).await.refused(413, "too_large");
    put(json!({"key": "k".repeat(513), "value": ""})).await.refused(413, "too_large");
    for nonsense in [
        json!({"key": "k"}),
        json!({"key": "", "value": "v"}),
        json!({"key": "k", "value": 1}),
        json!({"key": "k", "value": {"a": 1}}),
        json!({"key": "k", "value": "v", "value_base64": "dg=="}),
        json!({"key": "k", "value_base64": "dg"}),
        json!({"key": "k", "value": "v", "if_version": -1}),
        json!({"key": "k", "value": "v", "fence": {"lock": "l"}}),
        json!({"key": "k", "value": "v", "fence": ["l", 1]}),
        json!({"key": "k", "value": "v", "fence": {"lock": "l", "token": 1, "more": 1}}),
        json!({"key": "k", "value": "v", "fence": {"lock": "", "token": 1}}),
    ] {
        put(nonsense).await.refused(400, "invalid");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn bytes_that_are_no_text_travel_as_base64() {
    let (_node, client) = start().await;
    client.post("/v1/value/put", json!({"key": "k", "value_base64": "//4A"})).await.ok();
    let read = json!({"key": "k", "value": null, "value_base64": "//4A", "version": 1, "token": 0});
    assert_eq!(client.get("/v1/value?key=k").await.ok(), read);
    client.post("/v1/value/put", json!({"key": "k", "value_base64": "w6Q="})).await.ok();
    assert_eq!(client.get("/v1/value?key=k").await.ok()["value"], "ä");
}

#[tokio::test(flavor = "current_thread")]
async fn a_stale_holder_cannot_write_even_before_the_new_one_has() {
    let (_node, client) = start().await;
    let (a, b) = (client.session().await, client.session().await);
    let put = |value: &str, token: u64| {
        client.post(
            "/v1/value/put",
            json!({"key": "k", "value": value, "fence": {"lock": "l", "token": token}}),
        )
    };
    put("nobody", 0).await.refused(412, "stale_token");
    let old = client.take(&a, "l").await;
    put("first", old).await.ok();
    assert_eq!(client.get("/v1/value?key=k").await.ok()["token"], old);
    put("too early", old + 1).await.refused(412, "stale_token");
    client.release(&a, "l", old).await.ok();
    let new = client.take(&b, "l").await;
    let error = put("late", old).await.refused(412, "stale_token");
    assert_eq!(error["last_token"], new);
    put("second", new).await.ok();
    put("later still", old).await.refused(412, "stale_token");
    let delete = json!({"key": "k", "fence": {"lock": "l", "token": old}});
    client.post("/v1/value/delete", delete).await.refused(412, "stale_token");
    let read = client.get("/v1/value?key=k").await.ok();
    assert_eq!((&read["value"], &read["token"]), (&json!("second"), &json!(new)));

    // A key that is written under two locks takes only the higher token.
    let other = client.take(&a, "m").await;
    let under_m = json!({"key": "k", "value": "m", "fence": {"lock": "m", "token": other}});
    client.post("/v1/value/put", under_m).await.ok();
    put("lower", new).await.refused(412, "stale_token");
}

// ---- reading --------------------------------------------------------------------------------------------

#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_nobody_knows_is_free() {
    let (_node, client) = start().await;
    let lock = client.lock("new").await;
    assert_eq!(
        lock,
        json!({"lock": "new", "capacity": 1, "last_token": 0, "holders": [], "queue": [], "waiting": 0,
               "closed_ms": 0})
    );
    for bad in [
        "/v1/lock",
        "/v1/lock?name=",
        "/v1/lock?name=a&name=b",
        "/v1/lock?name=a&x=1",
        "/v1/lock?name=%ff",
        "/v1/lock?name=%00",
    ] {
        client.get(bad).await.refused(400, "invalid");
    }
    client.get(&format!("/v1/lock?name={}", "n".repeat(513))).await.refused(413, "too_large");
    let session = client.session().await;
    client.take(&session, "a b/ä&=+").await;
    let lock = client.get("/v1/lock?name=a+b%2F%C3%A4%26%3D%2B").await.ok();
    assert_eq!((&lock["lock"], lock["holders"].as_array().unwrap().len()), (&json!("a b/ä&=+"), 1));
}

#[tokio::test(flavor = "current_thread")]
async fn locks_come_in_pages() {
    let (_node, client) = start().await;
    let session = client.session().await;
    for name in ["b/1", "a/2", "a/1", "a/3", "c"] {
        client.take(&session, name).await;
    }
    let names = |page: &Value| -> Vec<String> {
        page["locks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|lock| lock["lock"].as_str().unwrap().to_owned())
            .collect()
    };
    for all in ["/v1/locks", "/v1/locks?prefix=&limit=&after=", "/v1/locks?limit=0"] {
        let page = client.get(all).await.ok();
        assert_eq!(names(&page), ["a/1", "a/2", "a/3", "b/1", "c"]);
        assert_eq!((keys(&page), &page["more"]), (vec!["locks", "more"], &json!(false)));
    }
    let page = client.get("/v1/locks?prefix=a/&limit=2").await.ok();
    assert_eq!((names(&page), &page["more"]), (vec!["a/1".to_owned(), "a/2".to_owned()], &json!(true)));
    let page = client.get("/v1/locks?prefix=a%2F&limit=2&after=a/2").await.ok();
    assert_eq!((names(&page), &page["more"]), (vec!["a/3".to_owned()], &json!(false)));
    let mut alone = client.lock("a/3").await;
    alone["holders"][0]["held_ms"] = page["locks"][0]["holders"][0]["held_ms"].clone();
    assert_eq!(page["locks"][0], alone);
    assert_eq!(client.get("/v1/locks?prefix=none").await.ok()["locks"], json!([]));
    for bad in ["limit=-1", "limit=x", "limit=1.5", "limit=99999999999", "limt=1", "limit=1&limit=2"] {
        client.get(&format!("/v1/locks?{bad}")).await.refused(400, "invalid");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn the_status_names_members_leader_and_term() {
    let (_node, client) = start().await;
    let session = client.session().await;
    client.take(&session, "l").await;
    let status = client.get("/v1/status").await.ok();
    assert_eq!((&status["leader"], &status["node_id"]), (&json!(1), &json!(1)));
    assert!(status["term"].as_u64().unwrap() >= 1);
    assert_eq!(status["members"][0]["node_id"], 1);
    assert_eq!(status["members"][0]["voter"], true);
    assert_eq!(
        (&status["sessions"], &status["locks_held"], &status["waiting"]),
        (&json!(1), &json!(1), &json!(0))
    );
    assert_eq!(status["last_token"], 1);
    assert!(status["applied_index"].as_u64().unwrap() > 0);

    for path in ["/livez", "/readyz", "/health"] {
        assert_eq!(client.get(path).await.ok(), json!({"status": "ok"}));
    }
    for path in ["/readyz?verbose", "/readyz?verbose=1", "/health?verbose"] {
        assert_eq!(client.get(path).await.ok()["checks"]["role"], "leader");
    }
    assert_eq!(client.get("/version").await.ok()["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test(flavor = "current_thread")]
async fn metrics_are_text_for_prometheus() {
    let (_node, client) = start().await;
    let session = client.session().await;
    client.take(&session, "l").await;
    let answer = client.get("/metrics").await;
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = answer.text();
    assert!(text.contains("\nlockkeeper_locks_held 1\n"), "{text}");
    assert!(!text.contains("# EOF"));
    let accept = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let answer = client.request("GET", "/metrics", accept, b"").await;
    assert_eq!(
        answer.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(answer.text().ends_with("# EOF\n"));
}

#[tokio::test(flavor = "current_thread")]
async fn elections_and_limiters_say_that_they_are_not_there() {
    let (_node, client) = start().await;
    for (path, body) in [
        ("/v1/election/campaign", json!({"session": "s", "election": "e", "value": "v", "wait_ms": 5})),
        ("/v1/election/resign", json!({"session": "s", "election": "e", "epoch": 1})),
        ("/v1/rate/take", json!({"limiter": "l", "rate_per_s": 1.5, "burst": 2})),
    ] {
        client.post(path, body).await.refused(501, "unsupported");
        client.request("POST", path, "", b"{").await.refused(400, "invalid");
        client.request("POST", path, "", b"{}").await.refused(400, "invalid");
    }
    for path in ["/v1/election?name=e", "/v1/election/observe?name=e"] {
        client.get(path).await.refused(501, "unsupported");
    }
}

// ---- callers that go away -------------------------------------------------------------------------------

async fn waiting_caller(client: Client, path: &str, body: Value) -> tokio::net::TcpStream {
    let stream = client.connect(&request("POST", path, "", body.to_string().as_bytes())).await;
    client.until_waiting("l", 1).await;
    stream
}

#[tokio::test(flavor = "current_thread")]
async fn a_caller_without_a_request_id_that_goes_away_leaves_the_queue() {
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
    // A connection that is only half closed has gone as well: nobody can tell the two apart.
    let mut half = waiting_caller(client, ACQUIRE, one).await;
    half.shutdown().await.unwrap();
    client.until_waiting("l", 0).await;
    // Nothing of it holds anything later.
    client.post("/v1/lock/force_release", json!({"lock": "l", "reason": "test"})).await.ok();
    assert_eq!(client.lock("l").await["holders"], json!([]));
}

#[tokio::test(flavor = "current_thread")]
async fn a_caller_with_a_request_id_keeps_its_place_and_finds_its_grant() {
    let (_node, client) = start().await;
    let (a, b, c) = (client.session().await, client.session().await, client.session().await);
    let token = client.take(&a, "l").await;
    let body = json!({"session": b, "lock": "l", "wait_ms": 600_000, "request": "r"});
    drop(waiting_caller(client, ACQUIRE, body.clone()).await);
    // Another comes after it, so that the node has surely seen the first one go.
    let behind = client.post_later(ACQUIRE, json!({"session": c, "lock": "l", "wait_ms": 600_000}));
    let lock = client.until_waiting("l", 2).await;
    assert_eq!(lock["queue"][0]["session"], b);
    // It comes back while it still waits, and has the same place.
    let back = client.post_later(ACQUIRE, body.clone());
    client.release(&a, "l", token).await.ok();
    let granted = back.await.unwrap().ok();
    assert_eq!(client.lock("l").await["holders"][0]["session"], b);
    // And once more, after the grant.
    assert_eq!(client.post(ACQUIRE, body).await.ok(), granted);
    client.release(&b, "l", granted["token"].as_u64().unwrap()).await.ok();
    behind.await.unwrap().ok();
}

#[tokio::test(flavor = "current_thread")]
async fn a_grant_that_comes_after_the_caller_has_gone_is_found_with_its_request_id() {
    let (_node, client) = start().await;
    let (a, b) = (client.session().await, client.session().await);
    let token = client.take(&a, "l").await;
    let body = json!({"session": b, "lock": "l", "wait_ms": 600_000, "request": "r"});
    drop(waiting_caller(client, ACQUIRE, body.clone()).await);
    client.release(&a, "l", token).await.ok();
    let lock =
        client.until("l", "held by the waiter", |lock| lock["holders"][0]["session"] == json!(b)).await;
    assert_eq!(client.post(ACQUIRE, body).await.ok()["token"], lock["holders"][0]["token"]);
}
