//! TLS: who is let in by a certificate, who is not, and certificates that are renewed.

use std::time::Duration;

use lockkeeper::Error;
use serde_json::json;

use crate::certificates::Authority;
use crate::harness::until;
use crate::stage::{Plan, Stage};

#[tokio::test]
async fn everything_goes_over_tls_library_cli_and_http() {
    let stage = Stage::start().await;
    let root = stage.root();
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

    let mut plain = stage.nobody();
    plain.ca = None;
    assert!(plain.get("/readyz").await.is_err(), "without TLS nothing is answered");
    let refused = plain.builder().connect_timeout(Duration::from_secs(2)).connect(&stage.url()).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
}

#[tokio::test]
async fn a_client_does_not_trust_another_node() {
    let stage = Stage::start().await;
    let strangers = Authority::new(stage.folder.path(), "strangers");
    let mut mistaken = stage.root();
    mistaken.ca = Some(strangers.file.clone());
    let refused = mistaken.builder().connect_timeout(Duration::from_secs(2)).connect(&stage.url()).await;
    let Err(error) = refused else { panic!("it trusted the node") };
    assert!(error.to_string().contains("certificate"), "{error}");
}

/// Mutual TLS: without tokens everybody has to show a certificate.
#[tokio::test]
async fn no_certificate_a_wrong_authority_and_an_expired_one_stay_outside() {
    let stage = Stage::with(Plan { client_ca: true, ..Plan::default() }).await;
    let strangers = Authority::new(stage.folder.path(), "strangers");
    let with = |own| {
        let mut caller = stage.nobody();
        caller.own = own;
        caller
    };
    for (what, caller) in [
        ("no certificate", with(None)),
        ("wrong authority", with(Some(strangers.issue("eve", &[])))),
        ("expired", with(Some(stage.clients_ca.issue_expired("old", &[])))),
        // It trusts the authority of the nodes; that does not make it one of the clients'.
        ("a node's", with(Some(stage.nodes_ca.issue("node-2", &[])))),
    ] {
        let answer = caller.get("/livez").await;
        assert!(answer.is_err(), "{what}: {answer:?}");
        let refused = caller.builder().connect_timeout(Duration::from_secs(1)).connect(&stage.url()).await;
        assert!(refused.is_err(), "{what}");
    }
    let ada = stage.certified("ada");
    // No rules yet: whoever has a certificate may do everything.
    let keeper = ada.keeper().await.unwrap();
    keeper.lock("a").acquire().await.unwrap().release().await.unwrap();
    assert!(ada.cli(&["who", "a"]).await.status.success());
}

#[tokio::test]
async fn a_certificate_s_name_is_an_identity() {
    let stage = Stage::start().await;
    stage.grant("ada", "orders/", &["acquire"]).await;
    let (ada, bert) = (stage.certified("ada"), stage.certified("bert"));
    let session = ada.session().await;
    ada.acquire(&session, "orders/1").await.ok();
    ada.acquire(&session, "bills/1").await.refused(403, "forbidden");
    let his = bert.session().await;
    bert.acquire(&his, "orders/2").await.refused(403, "forbidden");
    // A certificate named like the root is not the root.
    stage.certified("root").read("/v1/access").await.refused(401, "unauthenticated");
    let keeper = ada.keeper().await.unwrap();
    drop(keeper.lock("orders/3").acquire().await.unwrap());
    let refused = keeper.lock("bills/3").acquire().await;
    assert!(matches!(refused, Err(Error::Forbidden(_))), "{refused:?}");
}

#[tokio::test]
async fn certificates_are_renewed_without_a_restart() {
    let stage = Stage::start().await;
    let root = stage.root();
    let keeper = root.keeper().await.unwrap();
    let guard = keeper.lock("long").acquire().await.unwrap();
    // The authority itself is replaced: who trusts the new one alone is served as soon as the node has read it.
    let next = Authority::new(stage.folder.path(), "next");
    let renewed = next.issue("node", &[&stage.node.address]);
    let mut modern = stage.root();
    modern.ca = Some(next.file.clone());
    assert!(modern.get("/livez").await.is_err());
    let old = stage.folder.path().join("nodes-ca-node");
    // Half a renewal: the key is still the old one. The node goes on with what it had.
    std::fs::rename(&renewed.certificate, old.with_extension("pem")).unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert!(root.get("/livez").await.is_ok(), "half a renewal ends nothing");
    std::fs::rename(&renewed.key, old.with_extension("key")).unwrap();
    until("the new certificate", async || modern.get("/livez").await.ok()).await;
    assert!(root.get("/livez").await.is_err(), "the old certificate is no longer shown");
    // Whoever was there is not disturbed.
    guard.check().unwrap();
    guard.release().await.unwrap();
    let status = modern.read("/v1/status").await.ok();
    assert!(status["uptime_ms"].as_u64().unwrap() > 1_000, "{}", json!(status));
}

#[tokio::test]
async fn the_authority_of_clients_is_replaced_without_a_restart() {
    let stage = Stage::with(Plan { client_ca: true, ..Plan::default() }).await;
    let ada = stage.certified("ada");
    let keeper = ada.keeper().await.unwrap();
    let guard = keeper.lock("long").acquire().await.unwrap();
    let next = Authority::new(stage.folder.path(), "next-clients");
    let mut bert = stage.nobody();
    bert.own = Some(next.issue("bert", &[]));
    assert!(bert.get("/livez").await.is_err(), "nobody vouches for it yet");
    std::fs::rename(&next.file, &stage.clients_ca.file).unwrap();
    until("the new authority", async || bert.get("/livez").await.ok()).await;
    bert.read("/v1/lock?name=long").await.ok();
    assert!(ada.get("/livez").await.is_err(), "the old authority vouches for nobody any more");
    // Whoever was there is not disturbed.
    guard.check().unwrap();
    guard.release().await.unwrap();
}
