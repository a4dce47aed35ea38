//! The bound on the total size of the state (S11).

use lockkeeper_core::{AccessChange, Acquire, Command, Locks, Refusal, Reply};
use lockkeeper_server::failure::Failure;
use lockkeeper_server::{Node, NodeConfig};

const VALUE_BYTES: usize = 60_000;

fn put(key: &str, bytes: usize) -> Command {
    Command::PutValue { key: key.into(), value: vec![7; bytes].into(), fence: None, if_version: None }
}

fn set_bound(bytes: Option<u64>) -> Command {
    Command::ChangeAccess { by: "test".into(), change: AccessChange::SetStateBytes { bytes } }
}

fn is_limit(outcome: Result<Reply, Failure>) -> bool {
    matches!(outcome, Err(Failure::Refused(Refusal::Limit(why))) if why.contains("--state-bytes"))
}

#[tokio::test(flavor = "current_thread")]
async fn at_the_bound_nothing_new_is_accepted_and_what_frees_still_works_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let config = || NodeConfig::durable(folder.path());
    let node = Node::open(config()).await.unwrap();
    node.ready().await.unwrap();
    let calls = node.api();
    assert_eq!(calls.status().state_bytes_max, 1 << 30, "the default");
    calls.command(set_bound(Some(1 << 20))).await.unwrap();
    let (session, _) = calls.open_session(3_600_000, "test".into()).await.unwrap();
    let grant = calls.acquire(Acquire::new(session, Locks::One("kept".into()))).await.unwrap();
    let mut written = 0;
    while calls.command(put(&format!("k{written}"), VALUE_BYTES)).await.is_ok() {
        written += 1;
        assert!(written < 20, "there is no bound");
    }
    assert!(written > 10, "only {written} values of {VALUE_BYTES} bytes fit into a MiB");
    // What is left is too little for anything.
    while calls.command(put(&format!("small{written}"), 100)).await.is_ok() {
        written += 1;
    }
    assert!(is_limit(calls.command(put("new", 200)).await));
    assert!(matches!(
        calls.open_session(10_000, "x".repeat(400).into()).await,
        Err(Failure::Refused(Refusal::Limit(_)))
    ));
    let (used, most) = (calls.status().state_bytes, calls.status().state_bytes_max);
    assert!(used <= most && most == 1 << 20, "{used} of {most} bytes");
    node.stop().await;

    // It starts with what it has accepted.
    let node = Node::open(config()).await.unwrap();
    node.ready().await.unwrap();
    let calls = node.api();
    assert_eq!(calls.status().state_bytes_max, 1 << 20);
    assert!(is_limit(calls.command(put("new", 10_000)).await));
    assert!(calls.keep_alive(session).unwrap().is_some(), "a renewal");
    calls.command(put("k0", 10)).await.expect("a value that shrinks");
    let release = Command::Release { session, lock: "kept".into(), token: grant.token, forget: false };
    calls.command(release).await.expect("a release");
    let delete = Command::DeleteValue { key: "k1".into(), fence: None, if_version: None };
    calls.command(delete).await.expect("a deletion");
    calls.command(put("new", 10_000)).await.expect("there is room again");
    calls.command(set_bound(None)).await.unwrap();
    assert_eq!(calls.status().state_bytes_max, 1 << 30, "the default again");
    node.stop().await;
}
