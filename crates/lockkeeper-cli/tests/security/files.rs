//! Permissions of a node's files.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::connections::TestNode;
use crate::fixture::{Caller, ROOT_TOKEN};
use crate::harness::node::{free_address, lockkeeper};
use crate::harness::{BINARY, LONG, http, until};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

fn check_modes(folder: &Path) -> usize {
    assert_eq!(mode(folder), 0o700, "{}", folder.display());
    let mut files = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files += check_modes(&path),
            false => {
                assert_eq!(mode(&path), 0o600, "{}", path.display());
                files += 1;
            }
        }
    }
    files
}

/// Runs a node that must refuse to start, and returns its message.
async fn assert_refused(words: &[&str]) -> String {
    let mut command = tokio::process::Command::from(lockkeeper());
    command.args(["serve", "--listen", &free_address(7420)]).args(words).stdout(Stdio::null());
    let ended = tokio::time::timeout(LONG, command.kill_on_drop(true).output()).await;
    let Output { status, stderr, .. } = ended.expect("it is refused at once, and does not serve").unwrap();
    assert!(!status.success());
    String::from_utf8_lossy(&stderr).into_owned()
}

#[tokio::test]
async fn data_files_are_private() {
    // With an empty umask and early snapshots.
    let before = rustix::process::umask(rustix::fs::Mode::empty());
    let plain = TestNode::start(&["--snapshot-every", "10"]).await;
    rustix::process::umask(before);
    let snapshot = plain.node.data.join("snapshot");
    until("a snapshot", async || {
        plain.assert_works().await;
        fs::read_dir(&snapshot).is_ok_and(|mut found| found.next().is_some()).then_some(())
    })
    .await;
    let files = check_modes(&plain.node.data);
    assert!(files >= 5, "identity, locks, log and snapshot: {files}");
}

#[tokio::test]
async fn existing_folder_becomes_private() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("node-1");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, Permissions::from_mode(0o777)).unwrap();
    let mut node = crate::harness::node::Node::new(1, free_address(7420), String::new(), folder.path());
    node.spawn(&[]);
    until("the node to serve", async || node.leading_term().await).await;
    check_modes(&data);
}

/// A folder in which a node has run.
async fn used_folder(folder: &Path) -> PathBuf {
    let mut node = crate::harness::node::Node::new(1, free_address(7420), String::new(), folder);
    node.data = folder.join("data");
    node.spawn(&["--snapshot-every", "10"]);
    until("the node to serve", async || node.leading_term().await).await;
    node.kill();
    folder.join("data")
}

/// A planted link must not make the node overwrite another file of its user.
#[tokio::test]
async fn symbolic_links_and_hard_links_are_not_followed() {
    type Plant = fn(&Path, &Path) -> std::io::Result<()>;
    let (symbolic, hard): (Plant, Plant) =
        (|victim, link| symlink(victim, link), |victim, link| fs::hard_link(victim, link));
    let cases = [
        ("lock", symbolic, "symbolic link"),
        ("identity.json.new", symbolic, "symbolic link"),
        ("log/lock", symbolic, "symbolic link"),
        ("lock", hard, "hard link"),
        ("identity.json.new", hard, "hard link"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    for (link, plant, expected) in cases {
        let data = folder.path().join("data");
        if link == "log/lock" {
            // A log without an identity would be refused for that.
            used_folder(folder.path()).await;
            fs::remove_file(data.join(link)).unwrap();
        } else {
            fs::create_dir_all(&data).unwrap();
        }
        fs::write(&victim, "precious").unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o644)).unwrap();
        plant(&victim, &data.join(link)).unwrap();
        for flags in [&[][..], &["--allow-insecure-files"]] {
            let said = assert_refused(&[&["--data-dir", data.to_str().unwrap()], flags].concat()).await;
            assert!(said.contains(expected), "{link}: {said}");
            assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{link}");
            assert_eq!(mode(&victim), 0o644, "{link}");
        }
        fs::remove_dir_all(&data).unwrap();
    }
}

/// A planted link to a folder must not make the node change the modes of another folder of its user.
#[tokio::test]
async fn linked_folders_are_not_changed() {
    for link in ["log", "snapshot"] {
        let folder = tempfile::tempdir().unwrap();
        let data = used_folder(folder.path()).await;
        let victim = folder.path().join("victim");
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("page"), "public").unwrap();
        let set_mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        set_mode(&victim, 0o755);
        set_mode(&victim.join("page"), 0o644);
        fs::remove_dir_all(data.join(link)).unwrap();
        symlink(&victim, data.join(link)).unwrap();
        for flags in [&[][..], &["--allow-insecure-files"]] {
            let said = assert_refused(&[&["--data-dir", data.to_str().unwrap()], flags].concat()).await;
            assert!(said.contains("symbolic link"), "{link}: {said}");
            assert_eq!((mode(&victim), mode(&victim.join("page"))), (0o755, 0o644), "{link}");
            assert_eq!(fs::read_dir(&victim).unwrap().count(), 1, "{link}");
        }
    }
}

#[tokio::test]
async fn world_readable_root_token_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("root.token");
    fs::write(&token, ROOT_TOKEN).unwrap();
    fs::set_permissions(&token, Permissions::from_mode(0o644)).unwrap();
    let data = folder.path().join("data");
    let words = ["--data-dir", data.to_str().unwrap(), "--root-token-file", token.to_str().unwrap()];
    let said = assert_refused(&words).await;
    assert!(said.contains("chmod 600") && said.contains("--root-token-readable"), "{said}");
    // Accepted with the flag, or without world access. Group access is allowed, because Kubernetes mounts secrets so.
    let start = async |more: &[&str]| {
        let plain = TestNode::start_secured(&[&words[2..], more].concat()).await;
        drop(plain);
    };
    start(&["--root-token-readable"]).await;
    fs::set_permissions(&token, Permissions::from_mode(0o440)).unwrap();
    start(&[]).await;
    // Every user could replace it, even if they cannot read it.
    fs::set_permissions(&token, Permissions::from_mode(0o602)).unwrap();
    let said = assert_refused(&words).await;
    assert!(said.contains("another user of this machine can change the root token"), "{said}");
}

/// Open files accept writes after deletion, but nothing of them would survive the process.
#[tokio::test]
async fn node_ends_when_its_folder_is_deleted() {
    for what in ["", "log"] {
        let mut plain = TestNode::start(&[]).await;
        fs::remove_dir_all(plain.node.data.join(what)).unwrap();
        let ended = plain.node.ended().await;
        assert_eq!(ended.code(), Some(1));
        let said = plain.node.log_text();
        assert!(said.contains("was deleted or replaced while the node was running"), "{said}");
        assert!(http::quick_get(&plain.node.listen_addr, "/readyz").await.is_none());
    }
}

/// A backup holds names, owners, values and the hashes of tokens.
#[tokio::test]
async fn saved_snapshots_are_private_and_do_not_follow_links() {
    let plain = TestNode::start(&[]).await;
    plain.assert_works().await;
    let caller = Caller { address: plain.node.address.clone(), ca: None, own: None, token: None };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (victim, saved) = (path("victim"), path("saved"));
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, path("planted.part")).unwrap();
    let refused = caller.cli(&["snapshot", "save", &path("planted")]).await;
    assert!(!refused.status.success(), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("already exists"), "{refused:?}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");

    let mut command = tokio::process::Command::new("sh");
    let words = ["-c", "umask 0 && exec \"$0\" snapshot save \"$1\"", BINARY, &saved];
    command.args(words).env("LOCKKEEPER_ENGINE", format!("lockkeeper://{}", caller.address));
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(mode(Path::new(&saved)), 0o600);
    assert!(!Path::new(&path("saved.part")).exists());
}
