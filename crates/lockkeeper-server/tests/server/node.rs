//! A node as its clients see it, without a network: start, serve, stop and restart.

use std::time::Duration;

use lockkeeper_api::v1;
use lockkeeper_api::v1::{answer, operation};
use lockkeeper_server::{Node, NodeConfig};
use tokio::sync::mpsc;

/// A client on an in-process stream.
struct Client {
    frames: mpsc::Sender<v1::ClientFrame>,
    answers: mpsc::Receiver<v1::ServerFrame>,
    next_id: u64,
    early: Vec<v1::Answer>,
    events: Vec<v1::Event>,
}

impl Client {
    fn new(node: &mut Node) -> Client {
        let (frames, answers) = node.open_stream();
        Client { frames, answers, next_id: 0, early: Vec::new(), events: Vec::new() }
    }

    async fn send(&mut self, kind: operation::Kind) -> u64 {
        self.next_id += 1;
        let operations = vec![v1::Operation { id: self.next_id, kind: Some(kind) }];
        self.frames.send(v1::ClientFrame { operations }).await.expect("the node runs");
        self.next_id
    }

    async fn frame(&mut self) {
        let frame = tokio::time::timeout(Duration::from_secs(10), self.answers.recv())
            .await
            .expect("an answer in time")
            .expect("an open stream");
        self.early.extend(frame.answers);
        self.events.extend(frame.events);
    }

    async fn answer(&mut self, id: u64) -> answer::Kind {
        loop {
            if let Some(at) = self.early.iter().position(|answer| answer.id == id) {
                return self.early.remove(at).kind.expect("an answer has a kind");
            }
            self.frame().await;
        }
    }

    async fn call(&mut self, kind: operation::Kind) -> answer::Kind {
        let id = self.send(kind).await;
        self.answer(id).await
    }

    async fn open(&mut self, ttl_ms: u64) -> String {
        let request = v1::OpenSessionRequest { ttl_ms, owner: "test".into() };
        match self.call(operation::Kind::OpenSession(request)).await {
            answer::Kind::OpenSession(opened) => opened.session,
            other => panic!("not opened: {other:?}"),
        }
    }

    async fn acquire(&mut self, session: &str, lock: &str) -> answer::Kind {
        self.call(acquire(session, lock, "", 0)).await
    }
}

fn acquire(session: &str, lock: &str, request: &str, wait_ms: u64) -> operation::Kind {
    operation::Kind::Acquire(v1::AcquireRequest {
        session: session.into(),
        lock: lock.into(),
        request: request.into(),
        wait_ms,
        ..Default::default()
    })
}

fn release(session: &str, lock: &str, token: u64) -> operation::Kind {
    operation::Kind::Release(v1::ReleaseRequest {
        session: session.into(),
        lock: lock.into(),
        token,
        forget: false,
    })
}

fn granted(answer: answer::Kind) -> u64 {
    match answer {
        answer::Kind::Grant(grant) => grant.token,
        other => panic!("not granted: {other:?}"),
    }
}

fn refused(answer: answer::Kind) -> String {
    match answer {
        answer::Kind::Error(error) => error.code,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "current_thread")]
async fn lock_is_acquired_and_passes_to_the_next_waiter() {
    let mut node = Node::start(NodeConfig::in_memory()).await.unwrap();
    let mut client = Client::new(&mut node);
    let (one, two) = (client.open(10_000).await, client.open(10_000).await);
    let first = granted(client.acquire(&one, "orders/1").await);
    assert_eq!(refused(client.acquire(&two, "orders/1").await), "busy");

    let waiting = client.send(acquire(&two, "orders/1", "r1", 10_000)).await;
    assert!(matches!(client.call(release(&one, "orders/1", first)).await, answer::Kind::Done(_)));
    let second = granted(client.answer(waiting).await);
    assert!(second > first, "tokens rise");
    assert_eq!(refused(client.call(release(&one, "orders/1", first)).await), "not_held");
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn session_that_is_not_renewed_expires_and_a_waiter_gets_its_lock() {
    let mut node = Node::start(NodeConfig::in_memory()).await.unwrap();
    let mut client = Client::new(&mut node);
    let (short, long) = (client.open(150).await, client.open(60_000).await);
    let first = granted(client.acquire(&short, "db").await);
    let second = granted(client.call(acquire(&long, "db", "r1", 10_000)).await);
    assert!(second > first);
    assert!(client.events.iter().any(|event| matches!(
        &event.kind,
        Some(v1::event::Kind::SessionEnded(ended)) if ended.session == short && ended.why == "expired"
    )));
    let keep_alive = v1::KeepAliveAll { sessions: vec![short, long] };
    match client.call(operation::Kind::KeepAlive(keep_alive)).await {
        answer::Kind::KeepAlive(renewed) => assert_eq!(renewed.ttl_ms, [0, 60_000]),
        other => panic!("{other:?}"),
    }
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn wait_times_out_without_other_requests() {
    let mut node = Node::start(NodeConfig::in_memory()).await.unwrap();
    let mut client = Client::new(&mut node);
    let session = client.open(60_000).await;
    granted(client.acquire(&session, "db").await);
    assert_eq!(refused(client.call(acquire(&session, "db", "r1", 100)).await), "timeout");
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn acknowledged_state_survives_a_restart_and_tokens_rise() {
    let folder = tempfile::tempdir().unwrap();
    let config = NodeConfig::durable(folder.path());
    let mut node = Node::start(config.clone()).await.unwrap();
    let mut client = Client::new(&mut node);
    let session = client.open(60_000).await;
    let held = granted(client.acquire(&session, "kept").await);
    let given_back = granted(client.acquire(&session, "given-back").await);
    client.call(release(&session, "given-back", given_back)).await;
    node.stop().await;

    let mut node = Node::start(config).await.unwrap();
    let mut client = Client::new(&mut node);
    let attach = v1::AttachRequest { session: session.clone() };
    match client.call(operation::Kind::Attach(attach)).await {
        answer::Kind::Attach(attached) => {
            let grants: Vec<_> = attached.grants.iter().map(|grant| (grant.token, &grant.locks)).collect();
            assert_eq!(grants, [(held, &vec!["kept".to_owned()])]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(refused(client.acquire(&session, "kept").await), "busy");
    assert!(granted(client.acquire(&session, "given-back").await) > given_back);
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn snapshots_bound_the_log_and_are_read_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let config = NodeConfig {
        commands_between_snapshots: 500,
        entries_behind_snapshot: 1_000,
        ..NodeConfig::durable(folder.path())
    };
    let mut node = Node::start(config.clone()).await.unwrap();
    let mut client = Client::new(&mut node);
    let session = client.open(60_000).await;
    let mut last = 0;
    for round in 0..3_000 {
        last = granted(client.acquire(&session, &format!("lock-{}", round % 7)).await);
        client.call(release(&session, &format!("lock-{}", round % 7), last)).await;
    }
    let held = granted(client.acquire(&session, "held").await);
    assert!(held > last);
    let status = loop {
        let status = node.api().status();
        if status.purged_index > 1_000 {
            break status;
        }
        tokio::task::yield_now().await;
    };
    assert!(status.snapshot_index > 0 && status.snapshot_index <= status.applied_index);
    node.stop().await;

    let mut node = Node::start(config).await.unwrap();
    let mut client = Client::new(&mut node);
    assert_eq!(refused(client.acquire(&session, "held").await), "busy");
    assert!(granted(client.acquire(&session, "other").await) > held);
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn newer_stream_of_a_session_closes_the_older_one() {
    let mut node = Node::start(NodeConfig::in_memory()).await.unwrap();
    let mut old = Client::new(&mut node);
    let session = old.open(60_000).await;
    let token = granted(old.acquire(&session, "db").await);
    let mut new = Client::new(&mut node);
    let attach = v1::AttachRequest { session: session.clone() };
    match new.call(operation::Kind::Attach(attach)).await {
        answer::Kind::Attach(attached) => assert_eq!(attached.grants[0].token, token),
        other => panic!("{other:?}"),
    }
    assert_eq!(old.answers.recv().await, None, "the older stream has ended");
    node.stop().await;
}

/// Checks the advice in an error. It must not recommend an older copy of the folder, which would give tokens twice and has
/// lost votes.
fn check_advice(why: &str) {
    assert!(why.contains("snapshot restore") && why.contains("add it again"), "{why}");
    assert!(!why.contains("copy of the") && !why.contains("put back"), "{why}");
}

#[tokio::test(flavor = "current_thread")]
async fn error_for_an_unreadable_or_missing_identity_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let config = NodeConfig::durable(folder.path());
    Node::start(config.clone()).await.unwrap().stop().await;
    let path = folder.path().join("identity.json");
    let whole = std::fs::read(&path).unwrap();

    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let why = Node::start(config.clone()).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(why.contains("identity.json") && why.contains("cannot be read"), "{why}");
    check_advice(&why);

    std::fs::remove_file(&path).unwrap();
    let why = Node::start(config.clone()).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(why.contains("but no identity.json"), "{why}");
    check_advice(&why);

    std::fs::write(&path, &whole).unwrap();
    Node::start(config).await.expect("nothing was changed").stop().await;
}

/// Returns a data folder with a snapshot and a log that was purged up to it.
async fn folder_with_snapshot() -> (tempfile::TempDir, NodeConfig) {
    let folder = tempfile::tempdir().unwrap();
    let config = NodeConfig {
        commands_between_snapshots: 200,
        entries_behind_snapshot: 1_000,
        ..NodeConfig::durable(folder.path())
    };
    let mut node = Node::start(config.clone()).await.unwrap();
    let mut client = Client::new(&mut node);
    let session = client.open(600_000).await;
    let mut round = 0;
    while node.api().status().purged_index < 100 {
        let lock = format!("lock-{}", round % 50);
        let token = granted(client.acquire(&session, &lock).await);
        client.call(release(&session, &lock, token)).await;
        round += 1;
        assert!(round < 50_000, "the log was never purged");
    }
    node.stop().await;
    (folder, config)
}

#[tokio::test(flavor = "current_thread")]
async fn damaged_snapshot_stops_the_node_with_advice() {
    let (folder, config) = folder_with_snapshot().await;
    let path = folder.path().join("snapshot/table.snapshot");
    let whole = std::fs::read(&path).unwrap();

    let mut step = whole.len() / 97;
    step += step.is_multiple_of(2) as usize;
    for at in (0..whole.len()).step_by(step.max(1)) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        std::fs::write(&path, &flipped).unwrap();
        let why = Node::start(config.clone()).await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(why.contains("is damaged"), "byte {at}: {why}");
        check_advice(&why);
    }
    for length in [0, 5, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let why = Node::start(config.clone()).await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(why.contains("is damaged"), "cut to {length} bytes: {why}");
    }
    std::fs::remove_file(&path).unwrap();
    let why = Node::start(config.clone()).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(why.contains("the log begins at entry"), "no snapshot at all: {why}");
    check_advice(&why);

    std::fs::write(&path, &whole).unwrap();
    Node::start(config).await.expect("the whole one is read again").stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn wait_without_a_request_id_is_cancelled_after_a_restart() {
    use lockkeeper_core::{Acquire, Locks, Wait};

    let folder = tempfile::tempdir().unwrap();
    let config = NodeConfig::durable(folder.path());
    let node = Node::start(config.clone()).await.unwrap();
    let (session, _) = node.api().open_session(600_000, "test".into()).await.unwrap();
    let request = move |wait| Acquire { wait, ..Acquire::new(session, Locks::One("db".into())) };
    node.api().acquire(request(Wait::No)).await.unwrap();
    let api = node.api().clone();
    let waiting = tokio::spawn(async move { api.acquire(request(Wait::Forever)).await });
    while node.api().lock("db").unwrap().waiting == 0 {
        tokio::task::yield_now().await;
    }
    // The caller is lost with the process and cannot cancel its wait.
    node.stop().await;
    drop(waiting);

    let node = Node::start(config).await.unwrap();
    let gone = async {
        while node.api().lock("db").unwrap().waiting > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("the orphaned wait leaves the queue");
    node.stop().await;
}

/// One message of a non-member could leave such a term before these messages were refused.
#[tokio::test(flavor = "current_thread")]
async fn data_folder_with_an_impossible_term_is_refused_with_advice() {
    use lockkeeper_server::raft::log::{self, LogConfig, RealDisk};
    use lockkeeper_server::raft::types::Vote;
    use openraft::storage::RaftLogStorage;

    let folder = tempfile::tempdir().unwrap();
    Node::start(NodeConfig::durable(folder.path())).await.unwrap().stop().await;
    let disk = RealDisk::open(folder.path().join("log")).unwrap();
    let (mut store, _) = log::open(std::sync::Arc::new(disk), LogConfig::default()).unwrap();
    store.save_vote(&Vote::new(u64::MAX, 2)).await.unwrap();
    drop(store);
    let Err(refused) = Node::start(NodeConfig::durable(folder.path())).await else { panic!("it starts") };
    let message = refused.to_string();
    for words in ["term 18446744073709551615", "--peer-ca", "lockkeeper snapshot restore"] {
        assert!(message.contains(words), "{message}");
    }
}
