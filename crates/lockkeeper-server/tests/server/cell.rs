//! A cell of three nodes in this process, for tests that need too many entries for real ones. A node that was down until the
//! log no longer has the entries that it lacks gets a snapshot. If the transfer breaks off, the next attempt resumes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use lockkeeper_core::{Acquire, Locks};
use lockkeeper_server::{Node, NodeConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::support::{PATIENT, addresses, free_address, put, until};

/// More than the log keeps behind a snapshot.
const ENTRIES: u64 = 600;
const VALUES: u64 = 100;
const VALUE_BYTES: usize = 20_000;
/// A proxy in front of the lagging node that cuts connections after a number of bytes.
struct Proxy {
    address: String,
    real: String,
    link: Arc<Link>,
    running: AbortHandle,
    tasks: JoinSet<()>,
}

/// The link to the node.
struct Link {
    /// How many bytes may still pass.
    budget: AtomicU64,
    passed: AtomicU64,
    /// Whether to change one byte of a value in transit.
    damages: AtomicBool,
}

impl Link {
    /// Changes a byte in the middle of a value, if requested and there is one.
    fn damage(&self, bytes: &mut [u8]) {
        let value = [b'x'; 1_000];
        if self.damages.load(Ordering::Relaxed)
            && let Some(at) = bytes.windows(value.len()).position(|some| some == value)
        {
            bytes[at + value.len() / 2] ^= 1;
            self.damages.store(false, Ordering::Relaxed);
        }
    }
}

impl Proxy {
    async fn open() -> Proxy {
        let real = free_address().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (budget, passed) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        let link = Arc::new(Link { budget, passed, damages: AtomicBool::new(false) });
        let mut tasks = JoinSet::new();
        let running = {
            let (real, link) = (real.clone(), link.clone());
            tasks.spawn(async move {
                let mut connections = JoinSet::new();
                loop {
                    let (inbound, _) = listener.accept().await.unwrap();
                    let (real, link) = (real.clone(), link.clone());
                    connections.spawn(async move {
                        let _ = carry(inbound, &real, &link).await;
                    });
                }
            })
        };
        Proxy { address, real, link, running, tasks }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.running.abort();
        self.tasks.abort_all();
    }
}

async fn carry(inbound: TcpStream, real: &str, link: &Link) -> std::io::Result<()> {
    let outbound = TcpStream::connect(real).await?;
    let (mut from_peer, mut to_peer) = inbound.into_split();
    let (mut from_node, mut to_node) = outbound.into_split();
    let there = async {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let count = from_peer.read(&mut bytes).await?;
            let left = link.budget.load(Ordering::Relaxed);
            if count == 0 || left < count as u64 {
                // The connection breaks.
                return Ok::<_, std::io::Error>(());
            }
            link.budget.fetch_sub(count as u64, Ordering::Relaxed);
            link.passed.fetch_add(count as u64, Ordering::Relaxed);
            link.damage(&mut bytes[..count]);
            to_node.write_all(&bytes[..count]).await?;
        }
    };
    let back = async { tokio::io::copy(&mut from_node, &mut to_peer).await.map(drop) };
    tokio::select! {
        ended = there => ended,
        ended = back => ended,
    }
}

/// Returns the file with the parts of a snapshot that have arrived so far.
fn incoming(data: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(data.join("snapshot")).ok()?;
    let mut parts =
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("incoming-"));
    parts.next().map(|part| part.path())
}

fn arrived(data: &Path) -> Option<u64> {
    incoming(data).and_then(|path| Some(path.metadata().ok()?.len()))
}

/// Where a part of the snapshot is damaged.
#[derive(Clone, Copy, PartialEq)]
enum Damage {
    /// In transit: its checksum does not match, and the part is sent again.
    Sent,
    /// On disk, between two runs of the node: the checksum of the whole does not match, and all of it is sent again.
    Stored,
}

#[tokio::test(flavor = "current_thread")]
async fn interrupted_snapshot_transfer_to_a_lagging_node_is_resumed() {
    gets_a_snapshot(Damage::Sent).await;
}

#[tokio::test(flavor = "current_thread")]
async fn partial_snapshot_damaged_on_disk_is_discarded() {
    gets_a_snapshot(Damage::Stored).await;
}

async fn gets_a_snapshot(damage: Damage) {
    let folder = tempfile::tempdir().unwrap();
    let data: PathBuf = folder.path().join("3");
    let proxy = Proxy::open().await;
    let mut members = addresses([1, 2]).await;
    members.insert(3, proxy.address.clone());
    let config = |id: u64| NodeConfig {
        node_id: Some(id),
        listen: Some(if id == 3 { proxy.real.clone() } else { members[&id].clone() }),
        members: members.clone(),
        commands_between_snapshots: 500,
        entries_behind_snapshot: 100,
        timing: PATIENT,
        ..NodeConfig::durable(folder.path().join(id.to_string()))
    };
    let nodes = [Node::open(config(1)).await.unwrap(), Node::open(config(2)).await.unwrap()];
    let third = Node::open(config(3)).await.unwrap();
    let leader = || nodes.iter().find(|node| node.api().ready().is_ok());
    until("a leader that stays", async || match leader() {
        Some(_) => Some(()),
        // The third node leads. It transfers leadership when it stops.
        None => third.api().ready().ok(),
    })
    .await;
    until("the third to follow", async || (third.api().status().applied_index > 0).then_some(())).await;
    third.stop().await;
    let node = until("a leader", async || leader()).await;
    let missed_from = node.api().status().last_log_index;

    let (session, _) = node.api().open_session(3_600_000, "test".into()).await.unwrap();
    let grant = node.api().acquire(Acquire::new(session, Locks::One("kept".into()))).await.unwrap();
    for number in 0..VALUES {
        let key = format!("large-{number}");
        // On a busy machine the leader can lose its majority for a moment.
        until("the value to be stored", async || put(node, &key, VALUE_BYTES).await.then_some(())).await;
    }
    let began = Instant::now();
    while node.api().status().last_log_index < missed_from + ENTRIES {
        until("the value to be stored", async || put(node, "small", 10).await.then_some(())).await;
    }
    println!("{ENTRIES} entries in {:.1} s", began.elapsed().as_secs_f64());
    until("the log to be cut", async || (node.api().status().purged_index > missed_from).then_some(())).await;

    // The node restarts, and the link breaks in the middle of the transfer.
    let whole = VALUES * VALUE_BYTES as u64;
    proxy.link.budget.store(whole / 2, Ordering::Relaxed);
    proxy.link.passed.store(0, Ordering::Relaxed);
    let third = Node::open(config(3)).await.unwrap();
    // Nothing more arrives once the rest of the budget is smaller than a part.
    let there = until("half of it to be there", async || {
        arrived(&data)
            .filter(|there| *there > whole / 4 && proxy.link.budget.load(Ordering::Relaxed) < whole / 8)
    })
    .await;
    assert!(there > 0 && there < whole, "{there} of {whole} bytes");
    assert_eq!(third.api().status().values, 0, "a partial snapshot is not installed");
    // The node is also restarted.
    third.stop().await;
    match damage {
        Damage::Sent => proxy.link.damages.store(true, Ordering::Relaxed),
        Damage::Stored => {
            let path = incoming(&data).expect("the received parts are kept");
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    proxy.link.budget.store(u64::MAX, Ordering::Relaxed);
    let third = Node::open(config(3)).await.unwrap();
    until("it to catch up", async || {
        let (own, theirs) = (third.api().status(), node.api().status());
        (own.applied_index == theirs.applied_index && own.values == theirs.values).then_some(())
    })
    .await;
    let status = third.api().status();
    assert!(status.snapshot_index > missed_from, "it was a snapshot, not the log");
    assert_eq!((status.values, status.last_token), (VALUES + 1, grant.token.0));
    let passed = proxy.link.passed.load(Ordering::Relaxed);
    println!("{there} of about {whole} bytes before the cut, {passed} in all");
    match damage {
        Damage::Sent => {
            assert!(!proxy.link.damages.load(Ordering::Relaxed), "nothing was damaged in transit");
            // The parts in flight behind the damaged one are sent twice, but none that was stored.
            let most = there + 2 * (whole - there) + whole / 8;
            assert!(
                passed < most,
                "the transfer was not resumed: {passed} bytes sent, {there} of {whole} were stored"
            );
        }
        Damage::Stored => {
            assert!(passed > whole + whole / 4, "the damaged snapshot was not sent again: {passed} bytes")
        }
    }
    assert_eq!(third.api().digest(), node.api().digest(), "they have the same table");

    // The cell served throughout, and serves with the third node.
    assert!(put(node, "after", 10).await);
    until("it to follow", async || {
        (third.api().status().applied_index == node.api().status().applied_index).then_some(())
    })
    .await;
    third.stop().await;
    for node in nodes {
        node.stop().await;
    }
}
