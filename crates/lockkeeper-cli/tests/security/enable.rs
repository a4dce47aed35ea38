//! Access control is turned on explicitly, and every refused client gets the reason.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper::Loss;
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::connections::TestNode;
use crate::fixture::Caller;
use crate::harness::{LONG, until};

fn caller(plain: &TestNode) -> Caller {
    Caller { address: plain.node.address.clone(), ca: None, own: None, token: None }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn rules_and_tokens_on_an_open_cell_are_refused_with_advice() {
    let plain = TestNode::start(&[]).await;
    let anonymous = caller(&plain);
    for words in [&["access", "grant", "ci", "builds/", "acquire"][..], &["access", "token", "create", "ci"]]
    {
        let refused = anonymous.cli(words).await;
        assert_eq!(refused.status.code(), Some(64), "{refused:?}");
        assert!(text(&refused.stderr).contains("lockkeeper access enable"), "{refused:?}");
    }
    let rule = json!({"identity": "ci", "prefix": "", "rights": ["read"]});
    anonymous.post("/v1/access/grant", rule).await.assert_refused(400, "invalid");
    anonymous.post("/v1/access/token/create", json!({"identity": "ci"})).await.assert_refused(400, "invalid");
    let listed = anonymous.read("/v1/access").await.ok();
    assert_eq!(listed["enabled"], false, "{listed}");
    assert_eq!((&listed["rules"], &listed["tokens"]), (&json!([]), &json!([])), "{listed}");
    plain.assert_works().await;
}

#[tokio::test]
async fn enable_creates_the_first_administrator() {
    let plain = TestNode::start(&[]).await;
    let anonymous = caller(&plain);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("admin.token");
    let enabled = anonymous.cli(&["access", "enable", "--to", file.to_str().unwrap()]).await;
    assert!(enabled.status.success(), "{enabled:?}");
    let secret = std::fs::read_to_string(&file).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(
        text(&enabled.stdout).contains(file.to_str().unwrap()),
        "the output lacks the file of the token: {enabled:?}"
    );
    let said = text(&enabled.stdout) + &text(&enabled.stderr);
    assert!(!said.contains(secret.trim()) && said.contains("access control is on"), "{said}");
    // Only once.
    anonymous.post("/v1/access/enable", json!({})).await.assert_refused(401, "unauthenticated");
    let admin = anonymous.clone().token(secret.trim());
    admin.post("/v1/access/enable", json!({})).await.assert_refused(400, "invalid");
    let refused = anonymous.read("/v1/lock?name=a").await.assert_refused(401, "unauthenticated");
    assert!(refused["error"]["message"].as_str().unwrap().contains("access control is on"), "{refused}");
    // The administrator grants rights to others, and cannot lock itself out.
    admin
        .post("/v1/access/grant", json!({"identity": "ci", "prefix": "builds/", "rights": ["acquire"]}))
        .await
        .ok();
    let made = admin.post("/v1/access/token/create", json!({"identity": "ci"})).await.ok();
    let ci = anonymous.clone().token(made["token"].as_str().unwrap());
    let session = ci.session().await;
    ci.acquire(&session, "builds/1").await.ok();
    admin
        .post("/v1/access/revoke", json!({"identity": "admin", "prefix": ""}))
        .await
        .assert_refused(400, "invalid");
    let less = json!({"identity": "admin", "prefix": "", "rights": ["read"]});
    admin.post("/v1/access/grant", less).await.assert_refused(400, "invalid");
    let acts = admin.read("/v1/audit").await.ok()["acts"].to_string();
    assert!(acts.contains("access control turned on"), "{acts}");
}

/// The reason is not "could not be renewed in time".
#[tokio::test]
async fn holders_are_told_that_access_control_was_turned_on() {
    let plain = TestNode::start(&[]).await;
    let anonymous = caller(&plain);
    let keeper = anonymous.keeper().await.unwrap();
    let guard = keeper.lock("held").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    let mut run =
        tokio::process::Command::from(anonymous.command(&["run", "job", "--ttl", "3s", "--", "sleep", "60"]))
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
    until("the command to hold its lock", async || {
        let seen = anonymous.read("/v1/lock?name=job").await.ok();
        (!seen["holders"].as_array().unwrap().is_empty()).then_some(())
    })
    .await;
    anonymous.post("/v1/access/enable", json!({"identity": "ops"})).await.ok();
    let ended = tokio::time::timeout(LONG, run.wait()).await.expect("it ends").unwrap();
    let mut stderr = String::new();
    run.stderr.take().unwrap().read_to_string(&mut stderr).await.unwrap();
    assert_eq!(ended.code(), Some(70), "{stderr}");
    assert!(stderr.contains("access control was turned on"), "{stderr}");
    assert!(!stderr.contains("renewed in time"), "{stderr}");
    let why = tokio::time::timeout(LONG, guard.lost()).await.expect("the next renewal reports it");
    assert_eq!(why, Loss::Refused);
}
