//! Turning access control on is an explicit act, and nobody is shut out without being told why.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper::Loss;
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::crowd::Plain;
use crate::harness::{LONG, until};
use crate::stage::Caller;

fn caller(plain: &Plain) -> Caller {
    Caller { address: plain.node.address.clone(), ca: None, own: None, token: None }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn a_rule_or_token_on_an_open_cell_is_refused_with_the_way_to_turn_access_control_on() {
    let plain = Plain::start(&[]).await;
    let nobody = caller(&plain);
    for words in [&["access", "grant", "ci", "builds/", "acquire"][..], &["access", "token", "create", "ci"]]
    {
        let refused = nobody.cli(words).await;
        assert_eq!(refused.status.code(), Some(64), "{refused:?}");
        assert!(text(&refused.stderr).contains("lockkeeper access enable"), "{refused:?}");
    }
    let rule = json!({"identity": "ci", "prefix": "", "rights": ["read"]});
    nobody.post("/v1/access/grant", rule).await.refused(400, "invalid");
    nobody.post("/v1/access/token/create", json!({"identity": "ci"})).await.refused(400, "invalid");
    let listed = nobody.read("/v1/access").await.ok();
    assert_eq!(listed["enabled"], false, "{listed}");
    assert_eq!((&listed["rules"], &listed["tokens"]), (&json!([]), &json!([])), "{listed}");
    plain.works().await;
}

#[tokio::test]
async fn enable_makes_the_first_administrator_who_lets_others_in() {
    let plain = Plain::start(&[]).await;
    let nobody = caller(&plain);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("admin.token");
    let enabled = nobody.cli(&["access", "enable", "--to", file.to_str().unwrap()]).await;
    assert!(enabled.status.success(), "{enabled:?}");
    let secret = std::fs::read_to_string(&file).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(
        text(&enabled.stdout).contains(file.to_str().unwrap()),
        "it says where the token is: {enabled:?}"
    );
    let said = text(&enabled.stdout) + &text(&enabled.stderr);
    assert!(!said.contains(secret.trim()) && said.contains("access control is on"), "{said}");
    // Once.
    nobody.post("/v1/access/enable", json!({})).await.refused(401, "unauthenticated");
    let admin = nobody.clone().token(secret.trim());
    admin.post("/v1/access/enable", json!({})).await.refused(400, "invalid");
    let refused = nobody.read("/v1/lock?name=a").await.refused(401, "unauthenticated");
    assert!(refused["error"]["message"].as_str().unwrap().contains("access control is on"), "{refused}");
    // The administrator lets others in, and is not shut out by a slip.
    admin
        .post("/v1/access/grant", json!({"identity": "ci", "prefix": "builds/", "rights": ["acquire"]}))
        .await
        .ok();
    let made = admin.post("/v1/access/token/create", json!({"identity": "ci"})).await.ok();
    let ci = nobody.clone().token(made["token"].as_str().unwrap());
    let session = ci.session().await;
    ci.acquire(&session, "builds/1").await.ok();
    admin.post("/v1/access/revoke", json!({"identity": "admin", "prefix": ""})).await.refused(400, "invalid");
    let less = json!({"identity": "admin", "prefix": "", "rights": ["read"]});
    admin.post("/v1/access/grant", less).await.refused(400, "invalid");
    let acts = admin.read("/v1/audit").await.ok()["acts"].to_string();
    assert!(acts.contains("access control turned on"), "{acts}");
}

/// Not "could not be renewed in time": nothing was late.
#[tokio::test]
async fn holders_are_told_that_access_control_was_turned_on() {
    let plain = Plain::start(&[]).await;
    let nobody = caller(&plain);
    let keeper = nobody.keeper().await.unwrap();
    let guard = keeper.lock("held").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    let mut run =
        tokio::process::Command::from(nobody.command(&["run", "job", "--ttl", "3s", "--", "sleep", "60"]))
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
    until("the command to hold its lock", async || {
        let seen = nobody.read("/v1/lock?name=job").await.ok();
        (!seen["holders"].as_array().unwrap().is_empty()).then_some(())
    })
    .await;
    nobody.post("/v1/access/enable", json!({"identity": "ops"})).await.ok();
    let ended = tokio::time::timeout(LONG, run.wait()).await.expect("it ends").unwrap();
    let mut stderr = String::new();
    run.stderr.take().unwrap().read_to_string(&mut stderr).await.unwrap();
    assert_eq!(ended.code(), Some(70), "{stderr}");
    assert!(stderr.contains("access control was turned on"), "{stderr}");
    assert!(!stderr.contains("renewed in time"), "{stderr}");
    let why = tokio::time::timeout(LONG, guard.lost()).await.expect("it is told with its next renewal");
    assert_eq!(why, Loss::Refused);
}
