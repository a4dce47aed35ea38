//! A busy node: concurrent commands go into one entry, and the locks of a large session are released in slices.

use std::time::{Duration, Instant};

use lockkeeper_api::v1;
use lockkeeper_api::v1::{answer, operation};
use lockkeeper_core::{Acquire, Command, Locks, Reply, SessionId};
use lockkeeper_server::{Node, NodeConfig};
use tokio::sync::mpsc;

use crate::http;

const LONG: Duration = Duration::from_secs(60);
const FRAME: u64 = 500;
const MANY: u64 = 100_000;
/// Bound for an unoptimized build on a shared machine. For real figures see docs/performance.md.
const GAP_MAX: Duration = Duration::from_secs(5);

struct Client {
    frames: mpsc::Sender<v1::ClientFrame>,
    answers: mpsc::Receiver<v1::ServerFrame>,
}

impl Client {
    fn new(node: &mut Node) -> Client {
        let (frames, answers) = node.open_stream();
        Client { frames, answers }
    }

    /// Acquires all of these locks in one frame, and waits until all are granted.
    async fn take(&mut self, session: &str, locks: std::ops::Range<u64>) {
        let count = locks.end - locks.start;
        let operations = locks.map(|number| v1::Operation {
            id: number,
            kind: Some(operation::Kind::Acquire(v1::AcquireRequest {
                session: session.to_owned(),
                lock: format!("lock-{number}"),
                ..Default::default()
            })),
        });
        self.frames.send(v1::ClientFrame { operations: operations.collect() }).await.expect("the node runs");
        let mut granted = 0;
        while granted < count {
            let frame = tokio::time::timeout(LONG, self.answers.recv())
                .await
                .expect("in time")
                .expect("an open stream");
            for answer in frame.answers {
                assert!(matches!(answer.kind, Some(answer::Kind::Grant(_))), "{answer:?}");
                granted += 1;
            }
        }
    }
}

async fn syncs(client: http::Client) -> u64 {
    let metrics = client.get("/metrics").await.text();
    let line = metrics.lines().find_map(|line| line.strip_prefix("lockkeeper_wal_fsync_seconds_count "));
    line.and_then(|count| count.parse().ok()).expect("the metric of syncs")
}

#[tokio::test(flavor = "current_thread")]
async fn queued_commands_go_into_one_entry_and_one_sync() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::start(NodeConfig::durable(folder.path())).await.unwrap();
    let http = http::Client { address: node.listen("127.0.0.1:0").await.unwrap() };
    let (session, _) = node.api().open_session(60_000, "test".into()).await.unwrap();
    let mut client = Client::new(&mut node);
    client.take(&session.to_string(), 0..1).await;
    let (entries, synced) = (node.api().status().last_log_index, syncs(http).await);
    client.take(&session.to_string(), 1..1 + FRAME).await;
    let entries = node.api().status().last_log_index - entries;
    let synced = syncs(http).await - synced;
    println!("{FRAME} acquires in one frame: {entries} entries, {synced} syncs");
    assert!((1..=3).contains(&entries), "{entries} entries");
    assert!((1..=4).contains(&synced), "{synced} syncs");
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_session_of_100_000_locks_ends_without_stalling_the_others() {
    let mut node = Node::start(NodeConfig::in_memory()).await.unwrap();
    let (large, _) = node.api().open_session(3_600_000, "large".into()).await.unwrap();
    let (other, _) = node.api().open_session(3_600_000, "other".into()).await.unwrap();
    let mut client = Client::new(&mut node);
    for first in (0..MANY).step_by(5_000) {
        client.take(&large.to_string(), first..first + 5_000).await;
    }
    assert_eq!(node.api().status().locks_held, MANY);
    let calm = longest_pair(&node, other, 50).await;

    assert_eq!(node.api().command(Command::CloseSession { session: large }).await, Ok(Reply::Done));
    let began = Instant::now();
    let (mut longest, mut pairs) = (Duration::ZERO, 0);
    while node.api().status().locks_held > 0 {
        longest = longest.max(longest_pair(&node, other, 1).await);
        pairs += 1;
        assert!(began.elapsed() < LONG, "{} locks are left", node.api().status().locks_held);
    }
    println!(
        "{MANY} locks were released within {:?}; the longest of {pairs} pairs of another client took {longest:?} meanwhile, \
         {calm:?} before",
        began.elapsed()
    );
    assert!(pairs > 2, "the other client was served only {pairs} times while the locks were released");
    assert!(longest < GAP_MAX, "another client was stalled for {longest:?}");
    node.stop().await;
}

/// Acquires and releases a lock `pairs` times. Returns the longest time that one pair took.
async fn longest_pair(node: &Node, session: SessionId, pairs: usize) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..pairs {
        let began = Instant::now();
        let request = Acquire::new(session, Locks::One("other".into()));
        let grant = node.api().acquire(request).await.unwrap();
        let release = Command::Release { session, lock: "other".into(), token: grant.token, forget: true };
        node.api().command(release).await.unwrap();
        longest = longest.max(began.elapsed());
    }
    longest
}
