//! TLS: accepted and refused certificates, and their renewal.

use std::time::Duration;

use lockkeeper::Error;
use serde_json::json;

use crate::certificates::Authority;
use crate::fixture::{SecureNode, SecureNodeOptions};
use crate::harness::until;

#[tokio::test]
async fn library_cli_and_http_work_over_tls() {
    let secure = SecureNode::start().await;
    let root = secure.root();
    let keeper = root.keeper().await.unwrap();
    let guard = keeper.lock("orders/1").acquire().await.unwrap();
    assert!(guard.token().0 > 0);
    let held = root.read("/v1/lock?name=orders/1").await.ok();
    assert_eq!(held["holders"].as_array().unwrap().len(), 1);
    for words in [
        &["status"][..],
        &["ls"],
        &["who", "orders/1"],
        &["history"],
        &["top", "--once"],
        &["member", "list"],
        &["access", "list"],
        &["run", "jobs/1", "--", "true"],
        &["doctor"],
    ] {
        let output = root.cli(words).await;
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
    guard.release().await.unwrap();

    let mut plain = secure.anonymous();
    plain.ca = None;
    assert!(plain.get("/readyz").await.is_err(), "without TLS nothing is answered");
    let refused = plain.builder().connect_timeout(Duration::from_secs(2)).connect(&secure.url()).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
}

#[tokio::test]
async fn client_refuses_a_node_of_another_authority() {
    let secure = SecureNode::start().await;
    let strangers = Authority::new(secure.folder.path(), "strangers");
    let mut mistaken = secure.root();
    mistaken.ca = Some(strangers.file.clone());
    let refused = mistaken.builder().connect_timeout(Duration::from_secs(2)).connect(&secure.url()).await;
    let Err(error) = refused else { panic!("the client trusted the node") };
    assert!(error.to_string().contains("certificate"), "{error}");
}

/// Mutual TLS: without tokens every client needs a certificate.
#[tokio::test]
async fn missing_foreign_and_expired_certificates_are_refused() {
    let secure =
        SecureNode::with(SecureNodeOptions { client_ca: true, ..SecureNodeOptions::default() }).await;
    let strangers = Authority::new(secure.folder.path(), "strangers");
    let with = |own| {
        let mut caller = secure.anonymous();
        caller.own = own;
        caller
    };
    for (what, caller) in [
        ("no certificate", with(None)),
        ("wrong authority", with(Some(strangers.issue("eve", &[])))),
        ("expired", with(Some(secure.clients_ca.issue_expired("old", &[])))),
        // The authority of the nodes does not sign clients.
        ("a node's", with(Some(secure.nodes_ca.issue("node-2", &[])))),
    ] {
        let answer = caller.get("/livez").await;
        assert!(answer.is_err(), "{what}: {answer:?}");
        let refused = caller.builder().connect_timeout(Duration::from_secs(1)).connect(&secure.url()).await;
        assert!(refused.is_err(), "{what}");
    }
    let ada = secure.certified("ada");
    // Without rules, any certificate may do everything.
    let keeper = ada.keeper().await.unwrap();
    keeper.lock("a").acquire().await.unwrap().release().await.unwrap();
    assert!(ada.cli(&["who", "a"]).await.status.success());
}

#[tokio::test]
async fn name_in_the_certificate_is_the_identity() {
    let secure = SecureNode::start().await;
    secure.grant("ada", "orders/", &["acquire"]).await;
    let (ada, bert) = (secure.certified("ada"), secure.certified("bert"));
    let session = ada.session().await;
    ada.acquire(&session, "orders/1").await.ok();
    ada.acquire(&session, "bills/1").await.assert_refused(403, "forbidden");
    let his = bert.session().await;
    bert.acquire(&his, "orders/2").await.assert_refused(403, "forbidden");
    // A certificate named like the root is not the root.
    secure.certified("root").read("/v1/access").await.assert_refused(401, "unauthenticated");
    let keeper = ada.keeper().await.unwrap();
    drop(keeper.lock("orders/3").acquire().await.unwrap());
    let refused = keeper.lock("bills/3").acquire().await;
    assert!(matches!(refused, Err(Error::Forbidden(_))), "{refused:?}");
}

#[tokio::test]
async fn certificates_are_renewed_without_a_restart() {
    let secure = SecureNode::start().await;
    let root = secure.root();
    let keeper = root.keeper().await.unwrap();
    let guard = keeper.lock("long").acquire().await.unwrap();
    // The authority is replaced: a client that trusts only the new one is served once the node has reloaded.
    let next = Authority::new(secure.folder.path(), "next");
    let renewed = next.issue("node", &[&secure.node.address]);
    let mut modern = secure.root();
    modern.ca = Some(next.file.clone());
    assert!(modern.get("/livez").await.is_err());
    let old = secure.folder.path().join("nodes-ca-node");
    // Half a renewal, with the old key: the node keeps the old pair.
    std::fs::rename(&renewed.certificate, old.with_extension("pem")).unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert!(root.get("/livez").await.is_ok(), "half a renewal broke the node");
    std::fs::rename(&renewed.key, old.with_extension("key")).unwrap();
    until("the new certificate", async || modern.get("/livez").await.ok()).await;
    assert!(root.get("/livez").await.is_err(), "the old certificate is still presented");
    // Open connections are not affected.
    guard.check().unwrap();
    guard.release().await.unwrap();
    let status = modern.read("/v1/status").await.ok();
    assert!(status["uptime_ms"].as_u64().unwrap() > 1_000, "{}", json!(status));
}

#[tokio::test]
async fn client_authority_is_replaced_without_a_restart() {
    let secure =
        SecureNode::with(SecureNodeOptions { client_ca: true, ..SecureNodeOptions::default() }).await;
    let ada = secure.certified("ada");
    let keeper = ada.keeper().await.unwrap();
    let guard = keeper.lock("long").acquire().await.unwrap();
    let next = Authority::new(secure.folder.path(), "next-clients");
    let mut bert = secure.anonymous();
    bert.own = Some(next.issue("bert", &[]));
    assert!(bert.get("/livez").await.is_err(), "the new authority is not trusted yet");
    std::fs::rename(&next.file, &secure.clients_ca.file).unwrap();
    until("the new authority", async || bert.get("/livez").await.ok()).await;
    bert.read("/v1/lock?name=long").await.ok();
    assert!(ada.get("/livez").await.is_err(), "the old authority is still trusted");
    // Open connections are not affected.
    guard.check().unwrap();
    guard.release().await.unwrap();
}
