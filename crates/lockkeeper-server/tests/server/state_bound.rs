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
async fn at_the_bound_only_releasing_commands_are_accepted_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let config = || NodeConfig::durable(folder.path());
    let node = Node::open(config()).await.unwrap();
    node.ready().await.unwrap();
    let api = node.api();
    assert_eq!(api.status().state_bytes_max, 1 << 30, "the default");
    api.command(set_bound(Some(1 << 20))).await.unwrap();
    let (session, _) = api.open_session(3_600_000, "test".into()).await.unwrap();
    let grant = api.acquire(Acquire::new(session, Locks::One("kept".into()))).await.unwrap();
    let mut written = 0;
    while api.command(put(&format!("k{written}"), VALUE_BYTES)).await.is_ok() {
        written += 1;
        assert!(written < 20, "there is no bound");
    }
    assert!(written > 10, "only {written} values of {VALUE_BYTES} bytes fit into a MiB");
    // Small values use up the rest.
    while api.command(put(&format!("small{written}"), 100)).await.is_ok() {
        written += 1;
    }
    assert!(is_limit(api.command(put("new", 200)).await));
    assert!(matches!(
        api.open_session(10_000, "x".repeat(400).into()).await,
        Err(Failure::Refused(Refusal::Limit(_)))
    ));
    let (used, most) = (api.status().state_bytes, api.status().state_bytes_max);
    assert!(used <= most && most == 1 << 20, "{used} of {most} bytes");
    node.stop().await;

    // The restarted node loads the full state.
    let node = Node::open(config()).await.unwrap();
    node.ready().await.unwrap();
    let api = node.api();
    assert_eq!(api.status().state_bytes_max, 1 << 20);
    assert!(is_limit(api.command(put("new", 10_000)).await));
    assert!(api.keep_alive(session).unwrap().is_some(), "a renewal");
    api.command(put("k0", 10)).await.expect("a value that shrinks");
    let release = Command::Release { session, lock: "kept".into(), token: grant.token, forget: false };
    api.command(release).await.expect("a release");
    let delete = Command::DeleteValue { key: "k1".into(), fence: None, if_version: None };
    api.command(delete).await.expect("a deletion");
    api.command(put("new", 10_000)).await.expect("there is room again");
    api.command(set_bound(None)).await.unwrap();
    assert_eq!(api.status().state_bytes_max, 1 << 30, "the default again");
    node.stop().await;
}
