//! A full disk: new grants are refused, releases and reads still work, and full service resumes by itself when there is space
//! again. Uses a real file system of its own, which needs root to mount.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper_api::Code;
use lockkeeper_core::{Acquire, Command as TableCommand, Locks, Reply, SessionId};
use lockkeeper_server::failure::{Failure, Outcome};
use lockkeeper_server::{Node, NodeConfig};

/// A small file system, unmounted at the end.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    fn mount(path: &Path, mebibytes: u32) -> SmallDisk {
        let size = format!("size={mebibytes}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(path).status();
        assert!(mounted.is_ok_and(|status| status.success()), "this test mounts a tmpfs and needs root");
        SmallDisk { path: path.to_owned() }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

async fn put(node: &Node, key: &str) -> Outcome {
    let value = vec![b'x'; 60_000].into();
    let command = TableCommand::PutValue { key: key.into(), value, fence: None, if_version: None };
    node.api().command(command).await
}

async fn acquire(node: &Node, session: SessionId, lock: &str) -> Result<lockkeeper_core::Grant, Failure> {
    node.api().acquire(Acquire::new(session, Locks::One(lock.into()))).await
}

#[tokio::test(flavor = "current_thread")]
async fn full_disk_refuses_only_new_grants_and_recovers_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(folder.path(), 60);
    let data = disk.path.join("data");
    let node = Node::start(NodeConfig::durable(&data)).await.unwrap();
    let (session, _) = node.api().open_session(60_000, "test".into()).await.unwrap();
    let held = acquire(&node, session, "held").await.unwrap();

    // Another program fills the disk: the log has only its current segment and the next one.
    let filler = disk.path.join("filler");
    std::fs::write(&filler, vec![1; 24 << 20]).unwrap();

    let began = Instant::now();
    let mut written = 0;
    let why = loop {
        match put(&node, &format!("k{}", written % 10)).await {
            Ok(_) => written += 1,
            Err(failure) => break failure,
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the disk was never full");
    };
    assert_eq!(why.code(), Code::Unavailable);
    assert!(why.to_string().contains("no space left"), "{why}");
    assert!(why.to_string().contains("releases still work"), "{why}");
    assert!(
        why.to_string().contains("resume by themselves") && !why.to_string().contains("restart"),
        "{why}"
    );
    // Longer than the log's retry interval: a retry does not let anything through.
    for _ in 0..60 {
        assert_eq!(acquire(&node, session, "other").await.unwrap_err().code(), Code::Unavailable);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let release = TableCommand::Release { session, lock: "held".into(), token: held.token, forget: false };
    assert_eq!(node.api().command(release).await, Ok(Reply::Done), "a release still works");
    assert_eq!(node.api().keep_alive(session), Ok(Some(60_000)), "a keep-alive still works");
    assert!(node.api().lock("held").unwrap().holders.is_empty(), "a read still works");

    std::fs::remove_file(&filler).unwrap();
    let began = Instant::now();
    let again = loop {
        match acquire(&node, session, "held").await {
            Ok(grant) => break grant,
            Err(failure) => assert_eq!(failure.code(), Code::Unavailable),
        }
        assert!(began.elapsed() < Duration::from_secs(20), "it did not recover by itself");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(again.token > held.token);
    node.stop().await;

    let node = Node::start(NodeConfig::durable(&data)).await.unwrap();
    assert_eq!(node.api().lock("held").unwrap().holders[0].token, again.token.0);
    assert!(node.api().value("k0").unwrap().version > 0);
    node.stop().await;
}

/// Writes until there is no space left.
fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    let mut size = 1 << 20;
    while size > 0 {
        match file.write_all(&vec![1; size]) {
            Ok(()) => {}
            Err(_) => size /= 2,
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn failed_snapshot_does_not_stop_service_and_is_retried_when_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(folder.path(), 60);
    let config = NodeConfig {
        commands_between_snapshots: 50,
        entries_behind_snapshot: 1,
        ..NodeConfig::durable(disk.path.join("data"))
    };
    let node = Node::start(config.clone()).await.unwrap();
    let (session, _) = node.api().open_session(60_000, "test".into()).await.unwrap();
    let held = acquire(&node, session, "held").await.unwrap();
    // The log has its current segment and the next one: only the snapshot finds no space.
    let log = disk.path.join("data/log");
    let written = || -> u64 {
        let files = std::fs::read_dir(&log).unwrap().map(|file| file.unwrap().metadata().unwrap());
        files.map(|file| file.blocks() * 512).sum()
    };
    until("two whole segments", || written() >= 2 * config.log.segment_bytes).await;
    let filler = disk.path.join("filler");
    fill(&filler);
    for number in 0..60 {
        assert!(put(&node, &format!("k{}", number % 10)).await.is_ok(), "the log has space");
    }
    // A backup fails at once instead of waiting for space that may never be freed.
    let began = Instant::now();
    let why = node.api().backup().await.err().expect("no room for a snapshot");
    assert_eq!(why.code(), Code::Unavailable);
    assert!(why.to_string().contains("cannot write a snapshot"), "{why}");
    assert!(why.to_string().contains("free some space"), "{why}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(node.api().status().snapshot_index, 0, "none was written");

    let release = TableCommand::Release { session, lock: "held".into(), token: held.token, forget: false };
    assert_eq!(node.api().command(release).await, Ok(Reply::Done), "a release works");
    let last = acquire(&node, session, "held").await.expect("a grant works");

    std::fs::remove_file(&filler).unwrap();
    until("a snapshot", || node.api().status().snapshot_index > 0).await;
    for number in 0..60 {
        assert!(put(&node, &format!("k{}", number % 10)).await.is_ok());
    }
    until("the log to be cut", || node.api().status().purged_index > 0).await;
    assert!(node.api().backup().await.is_ok(), "a backup works again");
    node.stop().await;

    let node = Node::start(config).await.unwrap();
    assert_eq!(node.api().lock("held").unwrap().holders[0].token, last.token.0);
    node.stop().await;
}

async fn until(what: &str, mut look: impl FnMut() -> bool) {
    let began = Instant::now();
    while !look() {
        assert!(began.elapsed() < Duration::from_secs(20), "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
