//! Files of every released version can be read, and files of newer versions are refused with the version named.
//!
//! `tests/data/vN/` holds, for each format: `folder/`, the data folder of a stopped node (identity, log, snapshot);
//! `backup.snapshot`; and `expected.json`, what that node showed over HTTP before it stopped. All of them are read
//! by these tests, so adding one is all that a new version has to do:
//!
//! ```sh
//! LOCKKEEPER_WRITE_DATA=v2 cargo test -p lockkeeper-server --all-features --test server formats -- --ignored
//! git add crates/lockkeeper-server/tests/data/v2
//! ```
//!
//! Do that when something is added to what is written (a new command, a new record), after teaching `scene.rs` to
//! use it. Never rewrite the folder of a released version: real disks hold such files. Compatibility begins with
//! 0.1.0: until then, remove `v1` and write it again whenever the format changes.

mod caller;
mod newer;
mod scene;

use std::fs;
use std::path::{Path, PathBuf};

use lockkeeper_server::backup::token_floor::FloorSource;
use lockkeeper_server::{Node, NodeConfig, Security, backup};
use serde_json::{Value, json};

use self::caller::Caller;
use crate::http::Client;

/// The folders of test data, the oldest first.
fn versions() -> Vec<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut found: Vec<_> = fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert!(!found.is_empty(), "the test data is gone");
    found
}

/// A copy that the test may change.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(fs::copy(&path, &target).unwrap()),
        }
    }
}

/// The token of the administrator, where there is one.
const ROOT_TOKEN: &str = "the root token of the formats, long enough to be one";

/// A node, with authentication if the test data has access tokens.
struct Stage {
    node: Node,
    client: Client,
    authenticates: bool,
}

impl Stage {
    async fn start(config: NodeConfig, authenticates: bool) -> Stage {
        let temporary = tempfile::tempdir().unwrap();
        let file = temporary.path().join("root.token");
        fs::write(&file, ROOT_TOKEN).unwrap();
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let security = Security { root_token_file: authenticates.then_some(file), ..Security::default() };
        let config = NodeConfig { listen: Some("127.0.0.1:0".to_owned()), security, ..config };
        let node = Node::start(config).await.expect("the node starts");
        let client = Client { address: node.address().unwrap() };
        Stage { node, client, authenticates }
    }

    /// Starts a node on the data of a version, which tells whether it authenticates.
    async fn on(folder: &Path, expected: &Value) -> Stage {
        Stage::start(NodeConfig::durable(folder), expected["ci"].is_string()).await
    }

    fn root(&self) -> Caller {
        Caller::new(self.client, self.authenticates.then_some(ROOT_TOKEN))
    }

    /// Returns a client with the identity that owns the sessions, or an anonymous one if authentication is off.
    fn ci(&self, expected: &Value) -> Caller {
        Caller::new(self.client, expected["ci"].as_str())
    }
}

fn expected(version: &Path) -> Value {
    serde_json::from_slice(&fs::read(version.join("expected.json")).unwrap()).unwrap()
}

/// Collects what is expected and missing. More fields are fine: a newer version may add some.
fn missing(actual: &Value, expected: &Value, at: &str, found: &mut Vec<String>) {
    match (actual, expected) {
        (Value::Object(actual), Value::Object(expected)) => {
            for (key, value) in expected {
                missing(actual.get(key).unwrap_or(&Value::Null), value, &format!("{at}/{key}"), found);
            }
        }
        (Value::Array(actual), Value::Array(expected)) if actual.len() == expected.len() => {
            for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
                missing(actual, expected, &format!("{at}/{index}"), found);
            }
        }
        _ if actual == expected => {}
        _ => found.push(format!("{at}: {actual} instead of {expected}")),
    }
}

#[tokio::test(flavor = "current_thread")]
async fn data_folders_of_all_versions_are_readable_and_writable() {
    for version in versions() {
        let temporary = tempfile::tempdir().unwrap();
        copy(&version.join("folder"), temporary.path());
        let expected = expected(&version);
        let stage = Stage::on(temporary.path(), &expected).await;
        let mut wrong = Vec::new();
        missing(&scene::look(&stage.root()).await, &expected["shown"], "", &mut wrong);
        assert!(wrong.is_empty(), "{}: {wrong:#?}", version.display());
        scene::go_on(&stage.ci(&expected), &expected).await;
        if stage.authenticates {
            scene::check_access(&stage, &expected).await;
        }
        stage.node.stop().await;
        // The old log together with new entries can be read again.
        let stage = Stage::on(temporary.path(), &expected).await;
        stage.ci(&expected).get("/v1/value?key=format%2Fafter").await.ok();
        stage.node.stop().await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn backups_of_all_versions_can_be_restored() {
    for version in versions() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("restored");
        let floor = FloorSource::Given(1_000_000);
        let restored = backup::restore(&version.join("backup.snapshot"), &folder, 1, floor).unwrap();
        assert_eq!(restored.floor, 1_000_000, "{restored:?}");
        assert!(restored.locks > 0 && restored.sessions > 0 && restored.values > 0, "{restored:?}");
        let expected = expected(&version);
        let stage = Stage::on(&folder, &expected).await;
        let caller = stage.ci(&expected);
        let session = caller.session_of(60_000, "test").await;
        let token = caller.take(&session, "format/new").await;
        assert_eq!(token, restored.floor + 1, "tokens continue above the backup");
        let value = caller.get("/v1/value?key=format%2Fvalue").await.ok();
        assert_eq!(value["value"], json!("early"), "{value}");
        stage.node.stop().await;
    }
}

#[tokio::test(flavor = "current_thread")]
#[ignore = "writes the test data of a new version; see the head of this file"]
async fn write() {
    let name = std::env::var("LOCKKEEPER_WRITE_DATA").expect("LOCKKEEPER_WRITE_DATA names the version: v2");
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    assert!(!target.exists(), "{} already exists: old data is never overwritten", target.display());
    scene::write(&target).await;
}
