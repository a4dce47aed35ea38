//! Quotas of namespaces and identities.

use serde_json::json;

use crate::fixture::SecureNode;

#[tokio::test]
async fn namespace_quota_does_not_affect_other_namespaces() {
    let secure = SecureNode::start().await;
    let ci = secure.caller_with("ci", "", &["acquire"]).await;
    let session = ci.session().await;
    // A lock that is in use before the quota is set counts.
    let token = ci.acquire(&session, "builds/0").await.ok()["token"].as_u64().unwrap();
    let quota = json!({"namespace": "builds", "locks": 2, "waiters": 1, "values": 1});
    secure.root().post("/v1/access/quota", quota).await.ok();
    ci.acquire(&session, "builds/1").await.ok();
    ci.acquire(&session, "builds/2").await.assert_refused(429, "limit");
    ci.acquire(&session, "election/builds/2").await.assert_refused(429, "limit");
    ci.acquire(&session, "orders/1").await.ok();
    let both = json!({"session": session, "locks": ["builds/8", "orders/8"]});
    ci.post("/v1/lock/acquire_all", both).await.assert_refused(429, "limit");
    // Releases work at the bound, and make room.
    ci.post("/v1/lock/release", json!({"session": session, "lock": "builds/0", "token": token})).await.ok();
    ci.acquire(&session, "builds/2").await.ok();

    let keeper = ci.keeper().await.unwrap();
    let waits = {
        let keeper = keeper.clone();
        tokio::spawn(async move {
            keeper.lock("builds/1").wait(std::time::Duration::from_secs(60)).acquire().await
        })
    };
    crate::harness::until("a waiter", async || {
        let lock = secure.root().read("/v1/lock?name=builds/1").await.ok();
        (lock["queue"].as_array().unwrap().len() == 1).then_some(())
    })
    .await;
    let wait = json!({"session": session, "lock": "builds/2", "wait_ms": 1_000});
    ci.post("/v1/lock/acquire", wait).await.assert_refused(429, "limit");
    waits.abort();

    ci.post("/v1/value/put", json!({"key": "builds/v", "value": "1"})).await.ok();
    ci.post("/v1/value/put", json!({"key": "builds/v", "value": "2"})).await.ok();
    ci.post("/v1/value/put", json!({"key": "builds/w", "value": "1"})).await.assert_refused(429, "limit");
    ci.post("/v1/value/put", json!({"key": "orders/w", "value": "1"})).await.ok();
    ci.post("/v1/value/delete", json!({"key": "builds/v"})).await.ok();
    ci.post("/v1/value/put", json!({"key": "builds/w", "value": "1"})).await.ok();

    // The quota is removed.
    secure.root().post("/v1/access/quota", json!({"namespace": "builds"})).await.ok();
    ci.acquire(&session, "builds/5").await.ok();
}

#[tokio::test]
async fn session_and_request_quotas_are_enforced() {
    let secure = SecureNode::start().await;
    let ci = secure.caller_with("ci", "", &["acquire"]).await;
    let other = secure.caller_with("other", "", &["acquire"]).await;
    secure.root().post("/v1/access/quota", json!({"identity": "ci", "sessions": 2})).await.ok();
    let (first, second) = (ci.session().await, ci.session().await);
    ci.post("/v1/session/open", json!({"ttl_ms": 1_000})).await.assert_refused(429, "limit");
    let others = other.session().await;
    ci.post("/v1/session/close", json!({"session": first})).await.ok();
    ci.session().await;

    secure.root().post("/v1/access/quota", json!({"namespace": "builds", "requests_per_s": 5})).await.ok();
    let mut refused = 0;
    for number in 0..40 {
        refused += u32::from(ci.acquire(&second, &format!("builds/{number}")).await.0 == 429);
    }
    // Forty requests in sequence take less than seven seconds, even on a busy machine.
    assert!(refused > 0, "none was refused");
    other.acquire(&others, "orders/1").await.ok();
    ci.post("/v1/session/close", json!({"session": second})).await.ok();
    secure
        .root()
        .post("/v1/access/quota", json!({"namespace": "a", "sessions": 2}))
        .await
        .assert_refused(400, "invalid");
    secure
        .root()
        .post("/v1/access/quota", json!({"namespace": "a/b", "locks": 2}))
        .await
        .assert_refused(400, "invalid");
}
