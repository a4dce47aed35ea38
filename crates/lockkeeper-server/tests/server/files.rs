//! The files of a node: private, its own, and not deleted under it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use lockkeeper_server::{KeyPair, Node, NodeConfig, Security};

use crate::support::{LONG, put, skip_or_fail, until};

const NOBODY: u32 = 65_534;

fn config(data: &Path) -> NodeConfig {
    NodeConfig { commands_between_snapshots: 10, ..NodeConfig::durable(data) }
}

fn with_insecure_files(config: NodeConfig) -> NodeConfig {
    NodeConfig { security: Security { allow_insecure_files: true, ..config.security.clone() }, ..config }
}

/// Starts a node and waits until it has written a snapshot.
async fn start_with_snapshot(data: &Path) -> Node {
    let node = Node::start(config(data)).await.unwrap();
    until("a snapshot", async || {
        put(&node, "key", 10).await;
        data.join("snapshot/table.snapshot").is_file().then_some(())
    })
    .await;
    node
}

async fn assert_refused(config: NodeConfig) -> String {
    match Node::start(config).await {
        Ok(_) => panic!("the node starts"),
        Err(error) => error.to_string(),
    }
}

/// Lists a folder with everything below it.
fn everything(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    if path.is_dir() {
        found.extend(fs::read_dir(path).unwrap().flat_map(|entry| everything(&entry.unwrap().path())));
    }
    found
}

fn set_modes(data: &Path, folder: u32, file: u32) {
    for path in everything(data) {
        let mode = if path.is_dir() { folder } else { file };
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
}

#[tokio::test(flavor = "current_thread")]
async fn files_of_an_older_version_become_private() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    start_with_snapshot(&data).await.stop().await;
    set_modes(&data, 0o755, 0o644);
    let node = Node::start(config(&data)).await.unwrap();
    let found = everything(&data);
    assert!(found.len() >= 8, "three folders, identity, locks, log and snapshot: {found:?}");
    for path in found {
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
    }
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn files_of_another_user_are_refused() {
    if !rustix::process::geteuid().is_root() {
        return skip_or_fail("only root can give a file to another user", "run the tests as root");
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["", "identity.json", "log", "snapshot/table.snapshot"] {
        let data = folder.path().join("data");
        start_with_snapshot(&data).await.stop().await;
        set_modes(&data, 0o755, 0o644);
        chown(data.join(name), Some(NOBODY), None).unwrap();
        let said = assert_refused(config(&data)).await;
        for path in everything(&data) {
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, if path.is_dir() { 0o755 } else { 0o644 }, "{name}: changed {}", path.display());
        }
        let mentions = |word: &str| said.contains(word);
        assert!(mentions("belongs to user 65534") && mentions("--allow-insecure-files"), "{name}: {said}");
        Node::start(with_insecure_files(config(&data))).await.unwrap().stop().await;
        fs::remove_dir_all(&data).unwrap();
    }
}

#[tokio::test(flavor = "current_thread")]
async fn symbolic_links_are_not_followed_by_reads() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    start_with_snapshot(&data).await.stop().await;
    for name in ["identity.json", "snapshot/table.snapshot"] {
        let (path, moved) = (data.join(name), folder.path().join("elsewhere"));
        fs::rename(&path, &moved).unwrap();
        symlink(&moved, &path).unwrap();
        let said = assert_refused(config(&data)).await;
        assert!(said.contains("symbolic link"), "{name}: {said}");
        let said = assert_refused(with_insecure_files(config(&data))).await;
        assert!(said.contains("symbolic link"), "also with the flag: {name}: {said}");
        fs::rename(&moved, &path).unwrap();
    }
    Node::start(config(&data)).await.unwrap().stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn key_that_everybody_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (certificate, key) = (path("node.pem"), path("node.key"));
    // Not a key: what is checked first shows in the message.
    for file in [&certificate, &key, &path("link-target")] {
        fs::write(file, "neither a key nor a certificate").unwrap();
    }
    let with_key = |key: &Path, allow_insecure_files, is_peers: bool| {
        let pair = Some(KeyPair { certificate: certificate.clone(), key: key.to_owned() });
        let tls = pair.clone();
        let (peer, peer_ca) = if is_peers { (pair, Some(certificate.clone())) } else { (None, None) };
        NodeConfig {
            security: Security { tls, peer, peer_ca, allow_insecure_files, ..Security::default() },
            ..NodeConfig::in_memory()
        }
    };
    let said_open = "every user of this machine can read the key";
    for is_peers in [false, true] {
        for (mode, is_open) in [(0o644, true), (0o604, true), (0o640, false), (0o440, false), (0o600, false)]
        {
            fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
            let said = assert_refused(with_key(&key, false, is_peers)).await;
            assert_eq!(said.contains(said_open), is_open, "{mode:o}: {said}");
            let said = assert_refused(with_key(&key, true, is_peers)).await;
            assert!(!said.contains(said_open), "{mode:o}, with the flag: {said}");
        }
    }
    // Kubernetes mounts a secret as a link to a file that its group may read.
    fs::set_permissions(path("link-target"), Permissions::from_mode(0o440)).unwrap();
    symlink(path("link-target"), path("link.key")).unwrap();
    let said = assert_refused(with_key(&path("link.key"), false, false)).await;
    assert!(!said.contains(said_open), "{said}");
}

/// Open files accept writes after their deletion, but nothing of them would survive the process.
#[tokio::test(flavor = "current_thread")]
async fn node_ends_when_a_part_of_its_folder_is_deleted() {
    let delete_files = |folder: &Path, is: fn(&str) -> bool| {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if is(entry.file_name().to_str().unwrap()) {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    };
    type Delete<'a> = &'a dyn Fn(&Path);
    let deletions: [(&str, Delete<'_>); 5] = [
        ("rm log/*", &|data| delete_files(&data.join("log"), |_| true)),
        ("rm log/segment-*", &|data| delete_files(&data.join("log"), |name| name.starts_with("segment-"))),
        ("rm -r snapshot", &|data| fs::remove_dir_all(data.join("snapshot")).unwrap()),
        ("rm snapshot/*", &|data| delete_files(&data.join("snapshot"), |_| true)),
        ("rm identity.json", &|data| fs::remove_file(data.join("identity.json")).unwrap()),
    ];
    for (what, delete) in deletions {
        let folder = tempfile::tempdir().unwrap();
        let node = start_with_snapshot(folder.path()).await;
        delete(folder.path());
        let why =
            tokio::time::timeout(LONG, node.ended()).await.unwrap_or_else(|_| panic!("{what}: it runs on"));
        assert!(why.contains("deleted or replaced while the node was running"), "{what}: {why}");
    }
}
