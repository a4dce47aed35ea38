//! Rules, tokens and sessions: what one identity cannot do with what belongs to another.

use std::path::Path;

use serde_json::json;

use crate::stage::{ROOT_TOKEN, Stage};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn whoever_shows_nothing_or_something_wrong_is_not_known() {
    let stage = Stage::start().await;
    let nobody = stage.nobody();
    // Probes and the page itself are for everybody; it then asks for a token.
    for path in ["/livez", "/readyz", "/version", "/openapi.json", "/"] {
        nobody.read(path).await.ok();
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
        nobody.read(path).await.refused(401, "unauthenticated");
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
        nobody.post(path, body).await.refused(401, "unauthenticated");
    }
    let real = stage.known("ci", "", &["admin"]).await.token.unwrap();
    let shorter = &real[..real.len() - 1];
    for token in ["", "x", "lk_", "lk_0_0", ROOT_TOKEN.split_at(10).0, shorter, &format!("{real}0")] {
        nobody.clone().token(token).read("/v1/status").await.refused(401, "unauthenticated");
        let refused = nobody.clone().token(token).keeper().await;
        assert_eq!(refused.unwrap_err().code(), "unauthenticated", "{token}");
    }
    let refused = nobody.keeper().await.unwrap().lock("a").acquire().await;
    assert_eq!(refused.unwrap_err().code(), "unauthenticated");
    for words in
        [&["ls"][..], &["member", "list"], &["access", "list"], &["snapshot", "save", "state.snapshot"]]
    {
        let output = nobody.cli(words).await;
        assert!(!output.status.success(), "{words:?}");
        assert!(text(&output.stderr).contains("LOCKKEEPER_AUTH_TOKEN_FILE"), "{output:?}");
    }
}

#[tokio::test]
async fn another_s_session_is_no_session() {
    let stage = Stage::start().await;
    let ada = stage.known("ada", "", &["acquire"]).await;
    let eve = stage.known("eve", "", &["acquire"]).await;
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
        // The same as for a session that never was: nobody learns that it is there. The root is no exception.
        for caller in [&eve, &stage.root()] {
            caller.post(path, body.clone()).await.refused(410, "session_lost");
        }
    }
    let held = ada.read("/v1/lock?name=a").await.ok();
    assert_eq!(held["holders"][0]["token"], token);
    ada.post("/v1/session/keepalive", json!({"session": session})).await.ok();
    ada.post("/v1/session/close", json!({"session": waits})).await.ok();
    // The same identity with another token is the same.
    let made = stage.root().post("/v1/access/token/create", json!({"identity": "ada"})).await.ok();
    let again = stage.nobody().token(made["token"].as_str().unwrap());
    again.post("/v1/lock/release", s(json!({"lock": "a", "token": token}))).await.ok();
}

#[tokio::test]
async fn a_rule_ends_at_its_prefix_and_at_its_rights() {
    let stage = Stage::start().await;
    let ci = stage.known("ci", "builds/", &["acquire"]).await;
    let session = ci.session().await;
    ci.acquire(&session, "builds/1").await.ok();
    for lock in ["build", "orders/1", "builds", "Builds/1"] {
        ci.acquire(&session, lock).await.refused(403, "forbidden");
        ci.read(&format!("/v1/lock?name={lock}")).await.refused(403, "forbidden");
    }
    let both = json!({"session": session, "locks": ["builds/2", "orders/2"]});
    ci.post("/v1/lock/acquire_all", both).await.refused(403, "forbidden");
    ci.read("/v1/locks?prefix=builds/").await.ok();
    ci.read("/v1/locks?prefix=build").await.refused(403, "forbidden");
    ci.read("/v1/locks").await.refused(403, "forbidden");
    for path in ["/v1/audit", "/v1/top", "/v1/graph", "/v1/sessions", "/v1/access", "/v1/snapshot"] {
        ci.read(path).await.refused(403, "forbidden");
    }
    ci.post("/v1/lock/force_release", json!({"lock": "builds/1", "reason": "x"}))
        .await
        .refused(403, "forbidden");
    ci.post("/v1/value/put", json!({"key": "builds/v", "value": "1"})).await.ok();
    ci.post("/v1/value/put", json!({"key": "orders/v", "value": "1"})).await.refused(403, "forbidden");
    ci.read("/v1/value?key=orders/v").await.refused(403, "forbidden");
    let campaign = |election: &str| json!({"session": session, "election": election, "value": "me"});
    ci.post("/v1/election/campaign", campaign("builds/leader")).await.ok();
    ci.post("/v1/election/campaign", campaign("orders/leader")).await.refused(403, "forbidden");
    ci.acquire(&session, "election/orders/leader").await.refused(403, "forbidden");
    ci.post("/v1/member/remove", json!({"node_id": 1})).await.refused(403, "forbidden");
    ci.post("/v1/access/grant", json!({"identity": "ci", "prefix": "", "rights": ["admin"]}))
        .await
        .refused(403, "forbidden");
    ci.post("/v1/access/token/create", json!({"identity": "boss"})).await.refused(403, "forbidden");

    let reader = stage.known("reader", "builds/", &["read"]).await;
    reader.read("/v1/lock?name=builds/1").await.ok();
    let his = reader.session().await;
    reader.acquire(&his, "builds/9").await.refused(403, "forbidden");
    let operator = stage.known("operator", "builds/", &["force_release"]).await;
    operator.post("/v1/lock/force_release", json!({"lock": "builds/1", "reason": "stuck"})).await.ok();
    operator
        .post("/v1/lock/force_release", json!({"lock": "orders/1", "reason": "x"}))
        .await
        .refused(403, "forbidden");
    let metrics = stage.root().ask("GET", "/metrics", "").await.unwrap();
    assert_eq!(metrics.0, 200);
}

#[tokio::test]
async fn what_is_revoked_is_over_at_once_also_on_open_connections() {
    let stage = Stage::start().await;
    let ci = stage.known("ci", "builds/", &["acquire"]).await;
    let keeper = ci.keeper().await.unwrap();
    let guard = keeper.lock("builds/1").acquire().await.unwrap();
    let revoked = json!({"identity": "ci", "prefix": "builds/"});
    stage.root().post("/v1/access/revoke", revoked.clone()).await.ok();
    assert_eq!(keeper.lock("builds/2").acquire().await.unwrap_err().code(), "forbidden");
    // What it holds it can still give back.
    guard.release().await.unwrap();
    stage.grant("ci", "builds/", &["acquire"]).await;
    keeper.lock("builds/2").acquire().await.unwrap().release().await.unwrap();
    let listed = stage.root().read("/v1/access").await.ok();
    let id = listed["tokens"][0]["id"].as_str().unwrap();
    stage.root().post("/v1/access/token/revoke", json!({"id": id})).await.ok();
    ci.read("/v1/status").await.refused(401, "unauthenticated");
    assert_eq!(keeper.lock("builds/3").acquire().await.unwrap_err().code(), "unauthenticated");
    stage.root().post("/v1/access/revoke", revoked.clone()).await.ok();
    stage.root().post("/v1/access/revoke", revoked).await.refused(400, "invalid");
}

#[tokio::test]
async fn the_command_line_does_it_all_and_the_audit_trail_has_names() {
    let stage = Stage::start().await;
    let root = stage.root();
    let run = async |words: &[&str]| {
        let output = root.cli(words).await;
        assert!(output.status.success(), "{words:?}: {output:?}");
        text(&output.stdout)
    };
    run(&["access", "grant", "ops", "", "admin"]).await;
    run(&["access", "grant", "ci", "builds/", "acquire,force-release"]).await;
    let file = stage.folder.path().join("ops.token");
    let said = run(&["access", "token", "create", "ops", "--to", file.to_str().unwrap()]).await;
    let secret = std::fs::read_to_string(&file).unwrap();
    assert!(!said.contains(secret.trim()), "the secret is in the file alone: {said}");
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let ci = stage.nobody().token(run(&["access", "token", "create", "ci"]).await.trim());
    let ops = stage.nobody().token(secret.trim());
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
    let of =
        |what: &str| -> Vec<&serde_json::Value> { acts.iter().filter(|act| act["what"] == what).collect() };
    assert_eq!(of("force_release")[0]["by"], "ci", "{acts:?}");
    assert_eq!(of("force_release")[0]["reason"], "stuck");
    assert_eq!(of("access")[0]["by"], "ops");
    assert_eq!(of("access")[0]["change"], "revoke \"builds/\" from ci");
    assert_eq!(of("access").last().unwrap()["by"], "root");
    assert!(!json!(acts).to_string().contains(&secret.trim()[16..]), "no secret is in the trail");
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

/// Whoever reads the disk or a backup finds hashes, and no secret by which it could come in.
#[tokio::test]
async fn secrets_are_neither_in_the_data_folder_nor_in_a_backup() {
    let stage = Stage::start().await;
    let ci = stage.known("ci", "builds/", &["acquire"]).await;
    let session = ci.session().await;
    ci.acquire(&session, "builds/1").await.ok();
    let backup = stage.folder.path().join("backup.snapshot");
    let saved = stage.root().cli(&["snapshot", "save", backup.to_str().unwrap()]).await;
    assert!(saved.status.success(), "{saved:?}");
    let token = ci.token.unwrap();
    let (id, secret) = token.strip_prefix("lk_").unwrap().split_once('_').unwrap();
    let raw: Vec<u8> =
        (0..secret.len()).step_by(2).map(|at| u8::from_str_radix(&secret[at..at + 2], 16).unwrap()).collect();
    for (place, bytes) in
        [("the data folder", bytes_below(&stage.node.data)), ("the backup", std::fs::read(&backup).unwrap())]
    {
        let holds = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
        assert!(holds(id.as_bytes()) && holds(b"builds/1"), "{place} is where they would be");
        assert!(!holds(secret.as_bytes()) && !holds(&raw), "{place} holds the secret of a token");
        assert!(!holds(ROOT_TOKEN.as_bytes()), "{place} holds the root token");
    }
}
