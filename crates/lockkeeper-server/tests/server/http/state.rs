//! The HTTP API of a real node: tokens, values and reads. Sessions and locks are in `api.rs`.

use serde_json::{Value, json};

use super::start;

const ACQUIRE: &str = "/v1/lock/acquire";

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
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
    // Every gate refuses the former holder.
    client.release(&a, "l", token).await.refused(409, "not_held");
    let checked = client.post("/v1/token/check", json!({"lock": "l", "token": token})).await.ok();
    assert_eq!(checked, json!({"valid": false, "last_token": last}));
    let write = json!({"key": "k", "value": "v", "fence": {"lock": "l", "token": token}});
    let error = client.post("/v1/value/put", write).await.refused(412, "stale_token");
    assert_eq!(error["last_token"], last);

    let forced = client.post("/v1/lock/force_release", force.clone()).await.ok();
    assert_eq!(forced["released"], false);
    assert!(forced["last_token"].as_u64().unwrap() > last);

    // A waiter is granted above the raised token.
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
async fn token_is_checked_by_lock_or_by_sequencer() {
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
async fn tokens_rise_across_all_locks() {
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
async fn values_that_are_not_utf8_are_base64() {
    let (_node, client) = start().await;
    client.post("/v1/value/put", json!({"key": "k", "value_base64": "//4A"})).await.ok();
    let read = json!({"key": "k", "value": null, "value_base64": "//4A", "version": 1, "token": 0});
    assert_eq!(client.get("/v1/value?key=k").await.ok(), read);
    client.post("/v1/value/put", json!({"key": "k", "value_base64": "w6Q="})).await.ok();
    assert_eq!(client.get("/v1/value?key=k").await.ok()["value"], "ä");
}

#[tokio::test(flavor = "current_thread")]
async fn stale_holder_cannot_write_even_before_the_new_holder_does() {
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

    // A key that is fenced by two locks accepts only the higher token.
    let other = client.take(&a, "m").await;
    let under_m = json!({"key": "k", "value": "m", "fence": {"lock": "m", "token": other}});
    client.post("/v1/value/put", under_m).await.ok();
    put("lower", new).await.refused(412, "stale_token");
}

// ---- reading --------------------------------------------------------------------------------------------

#[tokio::test(flavor = "current_thread")]
async fn unknown_lock_is_free() {
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
async fn locks_are_listed_in_pages() {
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
async fn status_has_members_leader_and_term() {
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
