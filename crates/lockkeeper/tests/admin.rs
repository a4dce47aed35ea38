//! The administration of a cell, against a real node.
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

#[path = "common/node.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod node;

use lockkeeper::admin::{Quota, Right};
use lockkeeper::prelude::*;
use node::TestNode;

fn durable_node() -> (TestNode, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (TestNode::start(Some(folder.path().join("data")), "127.0.0.1:0"), folder)
}

#[tokio::test]
async fn members_and_status_come_from_the_leader() {
    let (node, _folder) = durable_node();
    let keeper = Keeper::connect(&node.url()).await.unwrap();
    let admin = keeper.admin().unwrap();
    let members = admin.members().await.unwrap();
    assert_eq!((members.leader, members.members.len()), (Some(1), 1));
    assert_eq!((members.members[0].node_id, members.members[0].voter), (1, true));
    let status = admin.status().await.unwrap();
    assert_eq!((status.leader, status.cell), (Some(1), keeper.status().await.unwrap().cell));
    let error = admin.add_member(7, "127.0.0.1:1").await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    assert_eq!(admin.remove_member(9).await.unwrap_err().code(), "invalid");
    // The second address is tried when the first one does not answer.
    let builder = Keeper::builder().connect_timeout(20.secs());
    let admin = builder.admin(&format!("lockkeeper://127.0.0.1:1,{}", node.address)).unwrap();
    assert_eq!(admin.members().await.unwrap(), members);
    keeper.close().await.unwrap();
}

#[tokio::test]
async fn rules_tokens_and_quotas_can_be_set_listed_and_removed() {
    let (node, _folder) = durable_node();
    let anonymous = Keeper::builder().admin(&node.url()).unwrap();
    assert!(!anonymous.access().await.unwrap().enabled);
    let refused = anonymous.grant_access("ci", "builds/", &[Right::Acquire]).await.unwrap_err();
    assert!(refused.to_string().contains("access enable"), "{refused}");
    let first = anonymous.enable_access("ada").await.unwrap();
    let admin = Keeper::builder().access_token(&first.token).admin(&node.url()).unwrap();
    admin.grant_access("ci", "builds/", &[Right::Acquire, Right::ForceRelease]).await.unwrap();
    let token = admin.create_access_token("ci").await.unwrap();
    assert!(!format!("{token:?}").contains(&token.token), "Debug reveals the secret");
    let quota = Quota { namespace: Some("builds".into()), locks: Some(5), ..Quota::default() };
    admin.set_quota(quota).await.unwrap();
    let access = admin.access().await.unwrap();
    let rule = access.rules.iter().find(|rule| rule.identity == "ci").unwrap();
    assert_eq!(
        (rule.prefix.as_str(), rule.rights.as_slice()),
        ("builds/", &["acquire".into(), "force_release".into()][..])
    );
    assert!(access.tokens.iter().any(|known| known.id == token.id), "{access:?}");
    let quota = access.quotas.iter().find(|quota| quota.namespace.as_deref() == Some("builds")).unwrap();
    assert_eq!((quota.locks, quota.locks_used), (Some(5), 0));
    admin.revoke_access("ci", "builds/").await.unwrap();
    admin.revoke_access_token(&token.id).await.unwrap();
    let access = admin.access().await.unwrap();
    assert!(access.rules.iter().all(|rule| rule.identity != "ci"), "{access:?}");
    assert!(access.tokens.iter().all(|known| known.id != token.id), "{access:?}");
}

#[tokio::test]
async fn token_of_enable_access_authenticates_the_first_administrator() {
    let (node, _folder) = durable_node();
    let anonymous = Keeper::builder().admin(&node.url()).unwrap();
    let created = anonymous.enable_access("ada").await.unwrap();
    assert_eq!(created.identity, "ada");
    assert_eq!(anonymous.access().await.unwrap_err().code(), "unauthenticated");
    let admin = Keeper::builder().access_token(&created.token).admin(&node.url()).unwrap();
    assert!(admin.access().await.unwrap().enabled);
    let keeper = Keeper::builder().access_token(&created.token).connect(&node.url()).await.unwrap();
    assert!(
        keeper.admin().unwrap().access().await.unwrap().enabled,
        "the admin uses the keeper's credentials"
    );
    keeper.close().await.unwrap();
}

#[tokio::test]
async fn snapshot_is_received_completely() {
    let (node, _folder) = durable_node();
    let keeper = Keeper::connect(&node.url()).await.unwrap();
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let mut snapshot = keeper.admin().unwrap().snapshot().await.unwrap();
    let (mut bytes, mut total, mut index) = (Vec::new(), 0, 0);
    while let Some(chunk) = snapshot.next().await.unwrap() {
        bytes.extend(chunk.data);
        (total, index) = (chunk.total_bytes, chunk.index);
    }
    assert_eq!(bytes.len() as u64, total);
    assert!(index > 0 && !bytes.is_empty());
    guard.release().await.unwrap();
    keeper.close().await.unwrap();
}

#[tokio::test]
async fn calls_can_be_spawned() {
    let admin = Keeper::builder().connect_timeout(1.millis()).admin("lockkeeper://127.0.0.1:1").unwrap();
    let call = tokio::spawn(async move {
        let members = admin.members().await.map(drop);
        members.and(admin.access().await.map(drop)).and(admin.add_member(2, "127.0.0.1:1").await)
    });
    assert_eq!(call.await.unwrap().unwrap_err().code(), "unavailable");
}

#[tokio::test]
async fn other_engines_do_not_support_administration() {
    let error = Keeper::builder().admin("redis://127.0.0.1:1").unwrap_err();
    assert_eq!(error.code(), "unsupported", "{error}");
    let keeper = Keeper::connect("embedded:").await.unwrap();
    assert_eq!(keeper.admin().unwrap_err().code(), "unsupported");
    keeper.close().await.unwrap();
}
