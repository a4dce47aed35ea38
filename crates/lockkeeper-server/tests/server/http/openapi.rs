//! The OpenAPI document tells the truth: what the node really answers fits what the document says.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Answer, start};

/// As much of JSON Schema as the document uses. An answer may have no field that is not described.
fn misfit(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(pointer) = schema["$ref"].as_str() {
        let target = document.pointer(&pointer[1..]).expect("the reference leads somewhere");
        return misfit(document, target, value, at);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fitting = choices.iter().filter(|choice| misfit(document, choice, value, at).is_none()).count();
        return (fitting != 1).then(|| format!("{at}: {fitting} of the choices fit {value}"));
    }
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        other => panic!("{at}: a type {other}"),
    };
    let fits = match &schema["type"] {
        Value::String(kind) => is(kind),
        Value::Array(kinds) => kinds.iter().any(|kind| kind.as_str().is_some_and(is)),
        other => panic!("{at}: a schema without a type: {other}"),
    };
    if !fits {
        return Some(format!("{at}: {value} is not of type {}", schema["type"]));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return Some(format!("{at}: {value} is not one of {words:?}"));
    }
    if let Some(number) = value.as_u64() {
        let (least, most) = (schema["minimum"].as_u64().unwrap_or(0), schema["maximum"].as_u64());
        if number < least || most.is_some_and(|most| number > most) {
            return Some(format!("{at}: {number} is out of range"));
        }
    }
    if let Some(items) = value.as_array() {
        return items.iter().find_map(|item| misfit(document, &schema["items"], item, &format!("{at}[]")));
    }
    let fields = value.as_object()?;
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    if let Some(missing) =
        required.iter().find(|name| !name.as_str().is_some_and(|name| fields.contains_key(name)))
    {
        return Some(format!("{at}: {missing} is missing in {value}"));
    }
    fields.iter().find_map(|(name, inner)| match schema["properties"].get(name) {
        Some(described) => misfit(document, described, inner, &format!("{at}.{name}")),
        None => Some(format!("{at}: {name} is not described")),
    })
}

#[track_caller]
fn assert_fits(document: &Value, operation: &Value, path: &str, answer: &Answer) {
    let mut response = &operation["responses"][answer.status.to_string()];
    if let Some(pointer) = response["$ref"].as_str() {
        response = document.pointer(&pointer[1..]).expect("the reference leads somewhere");
    }
    assert!(response.is_object(), "{path} answers {} but does not say so: {}", answer.status, answer.text());
    let kind = answer.header("content-type").and_then(|kind| kind.split(';').next()).expect("a content type");
    let content = &response["content"][kind];
    assert!(content.is_object(), "{path} answers with {kind} but does not say so");
    if kind == "application/json" && !path.ends_with("openapi.json") {
        assert_eq!(misfit(document, &content["schema"], &answer.json(), path), None);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn real_answers_fit_the_document() {
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
        let operation = &document["paths"][path]["post"];
        assert_fits(&document, operation, path, &client.post(path, body).await);
        assert_fits(&document, operation, path, &client.request("POST", path, "", b"{").await);
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
        assert_fits(&document, &document["paths"][path]["get"], path, &client.get(address).await);
        called.insert(path.to_owned());
    }
    let path = "/v1/lock/force_release";
    let forced = client.post(path, json!({"lock": "held", "reason": "test"})).await;
    assert_fits(&document, &document["paths"][path]["post"], path, &forced);
    called.insert(path.to_owned());
    waiting.await.unwrap().ok();
    let path = "/v1/lock/release";
    let granted = client.take(&session, "free").await;
    assert_fits(
        &document,
        &document["paths"][path]["post"],
        path,
        &client.release(&session, "free", granted).await,
    );

    let answer = client.get("/v1/access").await;
    assert_fits(&document, &document["paths"]["/v1/access"]["get"], "/v1/access", &answer);
    called.insert("/v1/access".to_owned());
    // Access control is turned on last: from then on nobody may ask without saying who they are.
    for (path, body) in [
        ("/v1/access/quota", json!({"namespace": "a", "locks": 5})),
        ("/v1/access/revoke", json!({"identity": "a", "prefix": ""})),
        ("/v1/access/token/revoke", json!({"id": "a"})),
        ("/v1/access/grant", json!({"identity": "a", "prefix": "", "rights": ["read"]})),
        ("/v1/access/token/create", json!({"identity": "a"})),
        ("/v1/access/enable", json!({"identity": "a"})),
    ] {
        let answer = client.post(path, body).await;
        assert_fits(&document, &document["paths"][path]["post"], path, &answer);
        called.insert(path.to_owned());
    }

    let described: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(called, described, "a call was left out");
}

#[tokio::test(flavor = "current_thread")]
async fn the_examples_fit_their_schemas() {
    let (_node, client) = start().await;
    let document = client.get("/openapi.json").await.ok();
    let mut examples = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let answered = &operation["responses"]["200"]["content"]["application/json"];
            for content in [&operation["requestBody"]["content"]["application/json"], answered] {
                if let Some(example) = content.get("example") {
                    assert_eq!(misfit(&document, &content["schema"], example, path), None);
                    examples += 1;
                }
            }
        }
    }
    assert!(examples > 30, "{examples}");
}

/// The check itself can fail.
#[test]
fn a_wrong_answer_is_noticed() {
    let document = json!({"components": {"schemas": {"Name": {"type": "string"}}}});
    let name = json!({"$ref": "#/components/schemas/Name"});
    let schema = json!({"type": "object", "required": ["name"], "properties": {
        "name": name, "count": {"type": "integer", "minimum": 1}, "mode": {"type": "string", "enum": ["x"]}}});
    let wrong = |value: Value| misfit(&document, &schema, &value, "it").is_some();
    assert!(!wrong(json!({"name": "a", "count": 1, "mode": "x"})));
    for value in [
        json!({}),
        json!([]),
        json!({"name": 1}),
        json!({"name": "a", "count": 0}),
        json!({"name": "a", "count": 1.5}),
        json!({"name": "a", "mode": "y"}),
        json!({"name": "a", "other": 1}),
    ] {
        assert!(wrong(value.clone()), "{value}");
    }
}
