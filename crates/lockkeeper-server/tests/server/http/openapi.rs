//! Validates the OpenAPI document: every answer in these tests is checked against it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock};

use jsonschema::Validator;
use serde_json::{Value, json};

use super::{Answer, start};

/// Returns the document with closed objects: an answer must not have fields that are not described.
fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        let mut document = serde_json::from_str(lockkeeper_server::openapi_document()).unwrap();
        close_objects(&mut document);
        document
    })
}

fn close_objects(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("type") == Some(&json!("object"))
                && fields.get("properties").is_some_and(Value::is_object)
            {
                fields.entry("additionalProperties").or_insert(json!(false));
            }
            fields.values_mut().for_each(close_objects);
        }
        Value::Array(items) => items.iter_mut().for_each(close_objects),
        _ => {}
    }
}

/// Returns the validator for a schema of the document. Cached.
fn validator(schema: &Value) -> Arc<Validator> {
    static CACHE: OnceLock<Mutex<HashMap<String, Arc<Validator>>>> = OnceLock::new();
    let mut cache = CACHE.get_or_init(Mutex::default).lock().unwrap();
    let validator = cache.entry(schema.to_string()).or_insert_with(|| {
        let mut whole = schema.clone();
        whole["components"] = document()["components"].clone();
        Arc::new(jsonschema::validator_for(&whole).expect("a schema"))
    });
    validator.clone()
}

/// Returns the first violation of a schema in a value, if any.
fn violation(schema: &Value, value: &Value) -> Option<String> {
    validator(schema).validate(value).err().map(|error| error.to_string())
}

/// Panics unless the answer is one that the document describes. Called for every answer of these tests.
#[track_caller]
pub(super) fn check(method: &str, target: &str, answer: &Answer) {
    let path = match target.split('?').next().unwrap() {
        file if file.starts_with("/console/") && file != "/console/events" => "/console/{file}",
        path => path,
    };
    let kind = answer.header("content-type").and_then(|kind| kind.split(';').next()).unwrap_or_default();
    // OpenAPI describes a HEAD by its GET; its answer has no body.
    let is_head = method == "HEAD";
    let described = if is_head { "get".to_owned() } else { method.to_lowercase() };
    let operation = &document()["paths"][path][described];
    if answer.status >= 400 && kind == "application/json" && !is_head {
        let error = json!({ "$ref": "#/components/schemas/Error" });
        let found = violation(&error, &answer.json());
        assert_eq!(found, None, "{method} {target}: {}", answer.text());
    }
    let mut response = &operation["responses"][answer.status.to_string()];
    if let Some(pointer) = response["$ref"].as_str() {
        response = document().pointer(&pointer[1..]).expect("the reference resolves");
    }
    // Unknown paths, and requests of other sites' web pages, may be refused by any call.
    let refused_before = answer.status >= 400 && (operation.is_null() || operation["security"].is_null());
    if response.is_null() && refused_before {
        return;
    }
    assert!(
        response.is_object(),
        "{method} {target}: status {} is not described: {}",
        answer.status,
        answer.text()
    );
    let content = &response["content"][kind];
    assert!(content.is_object(), "{method} {target}: content type {kind:?} is not described");
    if kind == "application/json" && content["schema"].is_object() && !is_head {
        let found = violation(&content["schema"], &answer.json());
        assert_eq!(found, None, "{method} {target}: {}", answer.text());
    }
}

#[tokio::test(flavor = "current_thread")]
async fn every_call_answers_as_described() {
    let (_node, client) = start().await;
    let document = client.get("/openapi.json").await.ok();
    assert_eq!(document, client.get("/v1/openapi.json").await.ok());
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let session = client.session().await;
    let other = client.session().await;
    let token = client.take(&session, "held").await;
    let waiting =
        client.post_later("/v1/lock/acquire", json!({"session": other, "lock": "held", "wait_ms": 60_000}));
    client.until_waiting("held", 1).await;
    let fence = json!({"lock": "held", "token": token});

    let posts = [
        ("/v1/session/open", json!({"ttl_ms": 5000})),
        ("/v1/session/open", json!({"ttl_ms": 1})),
        ("/v1/session/keepalive", json!({"session": session})),
        ("/v1/session/keepalive", json!({"session": "lost"})),
        ("/v1/session/close", json!({"session": client.session().await})),
        ("/v1/lock/acquire", json!({"session": session, "lock": "a", "request": "r"})),
        ("/v1/lock/acquire", json!({"session": session, "lock": "held"})),
        ("/v1/lock/acquire", json!({"session": session, "lock": "held", "wait_ms": 10})),
        ("/v1/lock/acquire", json!({"session": session, "lock": "b", "scope": "s"})),
        ("/v1/lock/acquire", json!({"session": session, "lock": "b", "scope": "s", "wait_ms": 1000})),
        ("/v1/lock/acquire", json!({"session": session, "lock": "b", "scope": "t", "policy": "wait_die"})),
        ("/v1/lock/acquire", json!({"session": session, "lock": "n".repeat(513)})),
        ("/v1/lock/acquire_all", json!({"session": session, "locks": ["x", "y"]})),
        ("/v1/lock/acquire_all", json!({"session": session, "locks": vec!["z"; 0]})),
        ("/v1/lock/release", json!({"session": session, "lock": "nobody", "token": 1})),
        ("/v1/lock/cancel", json!({"session": session, "request": "r"})),
        ("/v1/token/check", fence.clone()),
        ("/v1/token/check", json!({"sequencer": format!("lk1:{token}:x:held")})),
        ("/v1/value/put", json!({"key": "k", "value": "v", "fence": fence})),
        ("/v1/value/put", json!({"key": "k", "value": "v", "if_version": 9})),
        ("/v1/value/put", json!({"key": "k", "value": "v", "fence": {"lock": "held", "token": 0}})),
        ("/v1/value/put", json!({"key": "bytes", "value_base64": "/w=="})),
        ("/v1/value/delete", json!({"key": "gone"})),
        ("/v1/value/delete", json!({"key": "gone", "if_version": 1})),
        ("/v1/election/campaign", json!({"session": session, "election": "e", "value": "v"})),
        ("/v1/election/campaign", json!({"session": session, "election": "e", "value": "v"})),
        ("/v1/election/handover", json!({"session": session, "election": "e", "epoch": 1, "to": "v"})),
        ("/v1/election/resign", json!({"session": session, "election": "e", "epoch": 1})),
        ("/v1/member/add", json!({"node_id": 2, "address": "127.0.0.1:1"})),
        ("/v1/member/remove", json!({"node_id": 1})),
        ("/v1/rate/take", json!({"limiter": "l", "rate_per_s": 1, "burst": 1})),
    ];
    let mut called = BTreeSet::new();
    for (path, body) in posts {
        client.post(path, body).await;
        client.request("POST", path, "", b"{").await;
        called.insert(path.to_owned());
    }
    for address in [
        "/v1/lock?name=held",
        "/v1/lock?name=unknown",
        "/v1/lock",
        "/v1/locks",
        "/v1/locks?limit=1",
        "/v1/locks?limit=x",
        "/v1/history?name=held",
        "/v1/history?name=unknown&limit=1",
        "/v1/history",
        "/v1/audit",
        "/v1/audit?limit=x",
        "/v1/top",
        "/v1/top?limit=3",
        "/v1/graph",
        "/v1/graph?name=held",
        "/v1/sessions",
        "/v1/sessions?owner=test&limit=1",
        "/v1/sessions?after=x",
        "/console/events?view=nothing",
        "/console/style.css",
        "/console/app.js",
        "/console/icon.svg",
        "/console/nothing",
        "/v1/value?key=k",
        "/v1/value?key=bytes",
        "/v1/value?key=none",
        "/v1/value",
        "/v1/election?name=e",
        "/v1/election?name=nobody",
        "/v1/election/observe",
        "/v1/status",
        "/v1/members",
        "/v1/snapshot",
        "/livez",
        "/readyz",
        "/readyz?verbose",
        "/health?verbose",
        "/version",
        "/metrics",
        "/openapi.json",
        "/v1/openapi.json",
        "/",
    ] {
        let path = match address.split('?').next().unwrap() {
            file if file.starts_with("/console/") && !file.ends_with("events") => "/console/{file}",
            path => path,
        };
        client.get(address).await;
        called.insert(path.to_owned());
    }
    // Every other read of the document, so that a new one is called too.
    for address in plain_reads(&document) {
        let path = address.split('?').next().unwrap();
        if !called.contains(path) {
            let answer = client.get(&address).await;
            assert_eq!(answer.status, 200, "{address}: {}", answer.text());
            called.insert(path.to_owned());
        }
    }
    let path = "/v1/lock/force_release";
    client.post(path, json!({"lock": "held", "reason": "test"})).await.ok();
    called.insert(path.to_owned());
    waiting.await.unwrap().ok();
    let granted = client.take(&session, "free").await;
    client.release(&session, "free", granted).await.ok();

    // Access control is turned on last: from then on callers must authenticate.
    for (path, body) in [
        ("/v1/access/quota", json!({"namespace": "a", "locks": 5})),
        ("/v1/access/revoke", json!({"identity": "a", "prefix": ""})),
        ("/v1/access/token/revoke", json!({"id": "a"})),
        ("/v1/access/grant", json!({"identity": "a", "prefix": "", "rights": ["read"]})),
        ("/v1/access/token/create", json!({"identity": "a"})),
        ("/v1/access/enable", json!({"identity": "a"})),
    ] {
        client.post(path, body).await;
        called.insert(path.to_owned());
    }

    let described: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(called, described, "a call was left out");
}

/// The calls of a path whose query names at most a lock or a key, with these.
fn plain_reads(document: &Value) -> Vec<String> {
    let mut reads = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let Some(read) = item.get("get").filter(|_| path.starts_with("/v1/")) else { continue };
        let required = |parameter: &&Value| parameter["required"] == true;
        let values = read["parameters"].as_array().into_iter().flatten().filter(required).map(|parameter| {
            match parameter["name"].as_str().unwrap() {
                "key" => "key=k".to_owned(),
                name => format!("{name}=held"),
            }
        });
        reads.push(format!("{path}?{}", values.collect::<Vec<_>>().join("&")));
    }
    reads
}

#[test]
fn the_examples_fit_their_schemas() {
    let mut examples = 0;
    for (path, item) in document()["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let answered = &operation["responses"]["200"]["content"]["application/json"];
            for content in [&operation["requestBody"]["content"]["application/json"], answered] {
                if let Some(example) = content.get("example") {
                    assert_eq!(violation(&content["schema"], example), None, "{path}: {example}");
                    examples += 1;
                }
            }
        }
    }
    assert!(examples > 40, "{examples}");
}

/// The check itself fails for wrong answers.
#[test]
fn wrong_answers_are_detected() {
    let answer = |body: Value| Answer {
        status: 200,
        head: "HTTP/1.1 200 OK\r\ncontent-type: application/json".to_owned(),
        body: body.to_string().into_bytes(),
    };
    let is_detected = |body: Value| {
        let answer = answer(body);
        std::panic::catch_unwind(|| check("POST", "/v1/session/keepalive", &answer)).is_err()
    };
    assert!(!is_detected(json!({"ttl_ms": 10_000})));
    for body in [json!({}), json!([]), json!({"ttl_ms": "10"}), json!({"ttl_ms": 10, "other": 1})] {
        assert!(is_detected(body.clone()), "{body}");
    }
}
