//! Rules, tokens and sessions: isolation between identities.

use std::path::Path;

use serde_json::json;

use crate::fixture::{ROOT_TOKEN, SecureNode};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn missing_or_invalid_token_is_unauthenticated() {
    let secure = SecureNode::start().await;
    let anonymous = secure.anonymous();
    // Probes and the console page are public; the page then asks for a token.
    for path in ["/livez", "/readyz", "/version", "/openapi.json", "/"] {
        anonymous.read(path).await.ok();
    }
    for path in [
        "/v1/status",
        "/v1/locks",
        "/v1/lock?name=a",
        "/v1/value?key=a",
        "/v1/audit",
        "/v1/top",
        "/metrics",
        "/v1/sessions",
        "/v1/graph",
        "/v1/history?name=a",
        "/v1/members",
        "/v1/snapshot",
        "/v1/access",
        "/v1/election?name=a",
        "/console/events?view=cell",
    ] {
        anonymous.read(path).await.assert_refused(401, "unauthenticated");
    }
    for (path, body) in [
        ("/v1/session/open", json!({"ttl_ms": 1_000})),
        ("/v1/value/put", json!({"key": "a", "value": "b"})),
        ("/v1/value/delete", json!({"key": "a"})),
        ("/v1/token/check", json!({"lock": "a", "token": 1})),
        ("/v1/rate/take", json!({"limiter": "a", "rate_per_s": 1, "burst": 1})),
        ("/v1/lock/force_release", json!({"lock": "a", "reason": "b"})),
        ("/v1/member/remove", json!({"node_id": 1})),
        ("/v1/access/token/create", json!({"identity": "eve"})),
    ] {
        anonymous.post(path, body).await.assert_refused(401, "unauthenticated");
    }
    let real = secure.caller_with("ci", "", &["admin"]).await.token.unwrap();
    let shorter = &real[..real.len() - 1];
    for token in ["", "x", "lk_", "lk_0_0", ROOT_TOKEN.split_at(10).0, shorter, &format!("{real}0")] {
        anonymous.clone().token(token).read("/v1/status").await.assert_refused(401, "unauthenticated");
        let refused = anonymous.clone().token(token).keeper().await;
        assert_eq!(refused.unwrap_err().code(), "unauthenticated", "{token}");
    }
    let refused = anonymous.keeper().await.unwrap().lock("a").acquire().await;
    assert_eq!(refused.unwrap_err().code(), "unauthenticated");
    for words in
        [&["ls"][..], &["member", "list"], &["access", "list"], &["snapshot", "save", "state.snapshot"]]
    {
        let output = anonymous.cli(words).await;
        assert!(!output.status.success(), "{words:?}");
        assert!(text(&output.stderr).contains("LOCKKEEPER_AUTH_TOKEN_FILE"), "{output:?}");
    }
}

#[tokio::test]
async fn session_of_another_identity_is_reported_as_lost() {
    let secure = SecureNode::start().await;
    let ada = secure.caller_with("ada", "", &["acquire"]).await;
    let eve = secure.caller_with("eve", "", &["acquire"]).await;
    let session = ada.session().await;
    let token = ada.acquire(&session, "a").await.ok()["token"].as_u64().unwrap();
    let waits = ada.session().await;
    let s = |more: serde_json::Value| {
        let mut body = json!({"session": session});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (path, body) in [
        ("/v1/session/keepalive", s(json!({}))),
        ("/v1/session/close", s(json!({}))),
        ("/v1/lock/acquire", s(json!({"lock": "b"}))),
        ("/v1/lock/acquire_all", s(json!({"locks": ["b", "c"]}))),
        ("/v1/lock/release", s(json!({"lock": "a", "token": token}))),
        ("/v1/lock/cancel", s(json!({"request": "r"}))),
        ("/v1/election/campaign", s(json!({"election": "e", "value": "v"}))),
        ("/v1/election/resign", s(json!({"election": "e", "epoch": token}))),
        ("/v1/election/handover", s(json!({"election": "e", "epoch": token, "to": "v"}))),
    ] {
        // The same answer as for an unknown session, so its existence is not disclosed. Root is no exception.
        for caller in [&eve, &secure.root()] {
            caller.post(path, body.clone()).await.assert_refused(410, "session_lost");
        }
    }
    let held = ada.read("/v1/lock?name=a").await.ok();
    assert_eq!(held["holders"][0]["token"], token);
    ada.post("/v1/session/keepalive", json!({"session": session})).await.ok();
    ada.post("/v1/session/close", json!({"session": waits})).await.ok();
    // Another token of the same identity may use the session.
    let made = secure.root().post("/v1/access/token/create", json!({"identity": "ada"})).await.ok();
    let again = secure.anonymous().token(made["token"].as_str().unwrap());
    again.post("/v1/lock/release", s(json!({"lock": "a", "token": token}))).await.ok();
}

#[tokio::test]
async fn rule_is_limited_to_its_prefix_and_rights() {
    let secure = SecureNode::start().await;
    let ci = secure.caller_with("ci", "builds/", &["acquire"]).await;
    let session = ci.session().await;
    ci.acquire(&session, "builds/1").await.ok();
    for lock in ["build", "orders/1", "builds", "Builds/1"] {
        ci.acquire(&session, lock).await.assert_refused(403, "forbidden");
        ci.read(&format!("/v1/lock?name={lock}")).await.assert_refused(403, "forbidden");
    }
    let both = json!({"session": session, "locks": ["builds/2", "orders/2"]});
    ci.post("/v1/lock/acquire_all", both).await.assert_refused(403, "forbidden");
    ci.read("/v1/locks?prefix=builds/").await.ok();
    ci.read("/v1/locks?prefix=build").await.assert_refused(403, "forbidden");
    ci.read("/v1/locks").await.assert_refused(403, "forbidden");
    for path in ["/v1/audit", "/v1/top", "/v1/graph", "/v1/sessions", "/v1/access", "/v1/snapshot"] {
        ci.read(path).await.assert_refused(403, "forbidden");
    }
    ci.post("/v1/lock/force_release", json!({"lock": "builds/1", "reason": "x"}))
        .await
        .assert_refused(403, "forbidden");
    ci.post("/v1/value/put", json!({"key": "builds/v", "value": "1"})).await.ok();
    ci.post("/v1/value/put", json!({"key": "orders/v", "value": "1"})).await.assert_refused(403, "forbidden");
    ci.read("/v1/value?key=orders/v").await.assert_refused(403, "forbidden");
    let campaign = |election: &str| json!({"session": session, "election": election, "value": "me"});
    ci.post("/v1/election/campaign", campaign("builds/leader")).await.ok();
    ci.post("/v1/election/campaign", campaign("orders/leader")).await.assert_refused(403, "forbidden");
    ci.acquire(&session, "election/orders/leader").await.assert_refused(403, "forbidden");
    ci.post("/v1/member/remove", json!({"node_id": 1})).await.assert_refused(403, "forbidden");
    ci.post("/v1/access/grant", json!({"identity": "ci", "prefix": "", "rights": ["admin"]}))
        .await
        .assert_refused(403, "forbidden");
    ci.post("/v1/access/token/create", json!({"identity": "boss"})).await.assert_refused(403, "forbidden");

    let reader = secure.caller_with("reader", "builds/", &["read"]).await;
    reader.read("/v1/lock?name=builds/1").await.ok();
    let his = reader.session().await;
    reader.acquire(&his, "builds/9").await.assert_refused(403, "forbidden");
    let operator = secure.caller_with("operator", "builds/", &["force_release"]).await;
    operator.post("/v1/lock/force_release", json!({"lock": "builds/1", "reason": "stuck"})).await.ok();
    operator
        .post("/v1/lock/force_release", json!({"lock": "orders/1", "reason": "x"}))
        .await
        .assert_refused(403, "forbidden");
    let metrics = secure.root().call("GET", "/metrics", "").await.unwrap();
    assert_eq!(metrics.0, 200);
}

#[tokio::test]
async fn revocation_takes_effect_at_once_on_open_connections() {
    let secure = SecureNode::start().await;
    let ci = secure.caller_with("ci", "builds/", &["acquire"]).await;
    let keeper = ci.keeper().await.unwrap();
    let guard = keeper.lock("builds/1").acquire().await.unwrap();
    let revoked = json!({"identity": "ci", "prefix": "builds/"});
    secure.root().post("/v1/access/revoke", revoked.clone()).await.ok();
    assert_eq!(keeper.lock("builds/2").acquire().await.unwrap_err().code(), "forbidden");
    // It can still release what it holds.
    guard.release().await.unwrap();
    secure.grant("ci", "builds/", &["acquire"]).await;
    keeper.lock("builds/2").acquire().await.unwrap().release().await.unwrap();
    let listed = secure.root().read("/v1/access").await.ok();
    let id = listed["tokens"][0]["id"].as_str().unwrap();
    secure.root().post("/v1/access/token/revoke", json!({"id": id})).await.ok();
    ci.read("/v1/status").await.assert_refused(401, "unauthenticated");
    assert_eq!(keeper.lock("builds/3").acquire().await.unwrap_err().code(), "unauthenticated");
    secure.root().post("/v1/access/revoke", revoked.clone()).await.ok();
    secure.root().post("/v1/access/revoke", revoked).await.assert_refused(400, "invalid");
}

#[tokio::test]
async fn cli_manages_access_and_the_audit_trail_names_identities() {
    let secure = SecureNode::start().await;
    let root = secure.root();
    let run = async |words: &[&str]| {
        let output = root.cli(words).await;
        assert!(output.status.success(), "{words:?}: {output:?}");
        text(&output.stdout)
    };
    run(&["access", "grant", "ops", "", "admin"]).await;
    run(&["access", "grant", "ci", "builds/", "acquire,force-release"]).await;
    let file = secure.folder.path().join("ops.token");
    let said = run(&["access", "token", "create", "ops", "--to", file.to_str().unwrap()]).await;
    let secret = std::fs::read_to_string(&file).unwrap();
    assert!(!said.contains(secret.trim()), "the secret is printed: {said}");
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let ci = secure.anonymous().token(run(&["access", "token", "create", "ci"]).await.trim());
    let ops = secure.anonymous().token(secret.trim());
    run(&["access", "quota", "set", "builds", "--locks", "5"]).await;
    run(&["access", "quota", "set", "--identity", "ci", "--sessions", "3"]).await;
    let listed = run(&["access", "list"]).await;
    for word in ["ops", "ci", "\"builds/\"", "acquire, force_release", "0 of 5", "0 of 3"] {
        assert!(listed.contains(word), "{word}: {listed}");
    }
    let session = ops.session().await;
    ops.acquire(&session, "builds/1").await.ok();
    let freed = ci.cli(&["force-release", "builds/1", "--reason", "stuck"]).await;
    assert!(freed.status.success(), "{freed:?}");
    assert!(!ci.cli(&["access", "grant", "ci", "", "admin"]).await.status.success());
    assert!(ops.cli(&["access", "revoke", "ci", "builds/"]).await.status.success());
    let acts = root.read("/v1/audit").await.ok()["acts"].as_array().unwrap().clone();
    let by_kind =
        |what: &str| -> Vec<&serde_json::Value> { acts.iter().filter(|act| act["what"] == what).collect() };
    assert_eq!(by_kind("force_release")[0]["by"], "ci", "{acts:?}");
    assert_eq!(by_kind("force_release")[0]["reason"], "stuck");
    assert_eq!(by_kind("access")[0]["by"], "ops");
    assert_eq!(by_kind("access")[0]["change"], "revoke \"builds/\" from ci");
    assert_eq!(by_kind("access").last().unwrap()["by"], "root");
    assert!(!json!(acts).to_string().contains(&secret.trim()[16..]), "a secret is in the audit trail");
    let history = ops.cli(&["history"]).await;
    assert!(text(&history.stdout).contains("ops"), "{history:?}");
}

/// All bytes of all files below a folder.
fn bytes_below(folder: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => bytes.extend(bytes_below(&path)),
            false => bytes.extend(std::fs::read(&path).unwrap()),
        }
    }
    bytes
}

/// The disk and backups contain hashes of tokens only.
#[tokio::test]
async fn secrets_are_neither_in_the_data_folder_nor_in_a_backup() {
    let secure = SecureNode::start().await;
    let ci = secure.caller_with("ci", "builds/", &["acquire"]).await;
    let session = ci.session().await;
    ci.acquire(&session, "builds/1").await.ok();
    let backup = secure.folder.path().join("backup.snapshot");
    let saved = secure.root().cli(&["snapshot", "save", backup.to_str().unwrap()]).await;
    assert!(saved.status.success(), "{saved:?}");
    let token = ci.token.unwrap();
    let (id, secret) = token.strip_prefix("lk_").unwrap().split_once('_').unwrap();
    let raw: Vec<u8> =
        (0..secret.len()).step_by(2).map(|at| u8::from_str_radix(&secret[at..at + 2], 16).unwrap()).collect();
    for (place, bytes) in
        [("the data folder", bytes_below(&secure.node.data)), ("the backup", std::fs::read(&backup).unwrap())]
    {
        let holds = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
        assert!(holds(id.as_bytes()) && holds(b"builds/1"), "{place} does not contain the state");
        assert!(!holds(secret.as_bytes()) && !holds(&raw), "{place} holds the secret of a token");
        assert!(!holds(ROOT_TOKEN.as_bytes()), "{place} holds the root token");
    }
}
