//! Files of future versions are refused with the version named, and are not changed.

use std::fs;

use lockkeeper_server::backup::token_floor::FloorSource;
use lockkeeper_server::{Node, NodeConfig, backup};

const SECTOR: usize = 512;
const FIRST_SEGMENT: &str = "log/segment-0000000000000001.log";

/// Starts a node on a copy of the newest test data with one file changed, and returns why it did not start.
async fn refused(file: &str, change: impl FnOnce(&mut Vec<u8>)) -> String {
    let newest = super::versions().pop().unwrap();
    let temporary = tempfile::tempdir().unwrap();
    super::copy(&newest.join("folder"), temporary.path());
    let path = temporary.path().join(file);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(&path, &bytes).unwrap();
    let error = match Node::start(NodeConfig::durable(temporary.path())).await {
        Ok(_) => panic!("a node started on {file} of a newer version"),
        Err(error) => error.to_string(),
    };
    assert_eq!(fs::read(&path).unwrap(), bytes, "nothing is changed");
    assert!(!error.contains("damaged"), "it is not damaged: {error}");
    assert!(error.contains("version"), "it says what to do: {error}");
    error
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|window| window == what).expect("the bytes to be found")
}

#[tokio::test(flavor = "current_thread")]
async fn a_newer_folder_is_refused() {
    let error = refused("identity.json", |bytes| {
        let at = find(bytes, b"\"format\": 1") + b"\"format\": ".len();
        bytes[at] = b'7';
    });
    let error = error.await;
    assert!(error.contains("format 7"), "{error}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_newer_segment_is_refused() {
    let error = refused(FIRST_SEGMENT, |bytes| {
        bytes[12..16].copy_from_slice(&7_u32.to_le_bytes());
        let crc = crc32fast::hash(&bytes[12..SECTOR]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    });
    let error = error.await;
    assert!(error.contains("format 7"), "{error}");
}

#[tokio::test(flavor = "current_thread")]
async fn record_of_a_newer_version_is_not_reported_as_damage() {
    let error = refused(FIRST_SEGMENT, |bytes| {
        let sector = &mut bytes[SECTOR..2 * SECTOR];
        // Behind the sector's head and the frame's length: the kind of the first record.
        sector[24 + 4] = 99;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&1_u64.to_le_bytes());
        hasher.update(&1_u32.to_le_bytes());
        hasher.update(&sector[8..SECTOR - 4]);
        sector[4..8].copy_from_slice(&hasher.finalize().to_le_bytes());
    });
    let error = error.await;
    assert!(error.contains("kind 99"), "{error}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_newer_snapshot_is_refused() {
    let error = refused("snapshot/table.snapshot", |bytes| bytes[6] = b'7').await;
    assert!(error.contains("format 7"), "{error}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_snapshot_with_a_newer_table_is_refused() {
    let error = refused("snapshot/table.snapshot", |bytes| {
        let at = find(bytes, b"LKTABLE") + b"LKTABLE".len();
        bytes[at] = b'7';
    });
    let error = error.await;
    assert!(error.contains("format 7"), "{error}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_newer_backup_is_refused_and_the_folder_stays_empty() {
    let temporary = tempfile::tempdir().unwrap();
    let newest = super::versions().pop().unwrap();
    let mut bytes = fs::read(newest.join("backup.snapshot")).unwrap();
    bytes[6] = b'7';
    let path = temporary.path().join("backup.snapshot");
    fs::write(&path, bytes).unwrap();
    let folder = temporary.path().join("restored");
    let error = backup::restore(&path, &folder, 1, FloorSource::Given(1_000_000)).unwrap_err().to_string();
    assert!(error.contains("format 7") && error.contains("version"), "{error}");
    assert!(!folder.exists(), "nothing was written");
}
