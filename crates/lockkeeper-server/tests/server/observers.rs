//! Observers of elections: bounded for each connection and each identity, cheap, and gone with their connection.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_api::v1;
use lockkeeper_api::v1::{answer, operation};
use lockkeeper_server::{Node, NodeConfig};
use tokio::sync::mpsc;

use crate::support::{LONG, until};

/// The bounds of `limits/budget.rs`.
const PER_CONNECTION_MAX: usize = 1_024;
const PER_IDENTITY_MAX: usize = 16_384;
/// Operations in one frame.
const FRAME: usize = 10_000;

struct Client {
    frames: mpsc::Sender<v1::ClientFrame>,
    answers: mpsc::Receiver<v1::ServerFrame>,
}

impl Client {
    fn new(node: &mut Node) -> Client {
        let (frames, answers) = node.open_stream();
        Client { frames, answers }
    }

    /// Observes these elections, which have no leader, and then renews nothing. Returns the codes of refusals with their
    /// number, up to the answer to the renewal.
    async fn observe(&mut self, elections: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
        let kinds = elections.map(|election| {
            let (known_epoch, wait_ms) = (Some(0), 0);
            operation::Kind::ObserveElection(v1::ObserveElectionRequest { election, known_epoch, wait_ms })
        });
        let renewal = operation::Kind::KeepAlive(v1::KeepAliveAll::default());
        let operations: Vec<_> = kinds
            .chain([renewal])
            .zip(1..)
            .map(|(kind, id)| v1::Operation { id, kind: Some(kind) })
            .collect();
        let mut refusals = BTreeMap::new();
        let mut frames = operations.chunks(FRAME);
        let mut next = frames.next();
        loop {
            let send = async {
                match next {
                    Some(operations) => {
                        self.frames.send(v1::ClientFrame { operations: operations.to_vec() }).await
                    }
                    None => std::future::pending().await,
                }
            };
            let received = tokio::select! {
                sent = send => {
                    sent.expect("the node runs");
                    next = frames.next();
                    continue;
                }
                received = tokio::time::timeout(LONG, self.answers.recv()) => received,
            };
            for answer in received.expect("in time").expect("an open stream").answers {
                match answer.kind {
                    Some(answer::Kind::Error(error)) => *refusals.entry(error.code).or_default() += 1,
                    Some(answer::Kind::KeepAlive(_)) => return refusals,
                    other => panic!("an observer was answered without a change: {other:?}"),
                }
            }
        }
    }
}

fn names(count: usize, distinct: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |number| format!("election-{}", number % distinct))
}

async fn check_one_connection(count: usize, distinct: usize) {
    let mut node = Node::start(NodeConfig::in_memory()).await.unwrap();
    let refusals = Client::new(&mut node).observe(names(count, distinct)).await;
    assert_eq!(refusals, BTreeMap::from([("limit".to_owned(), count - PER_CONNECTION_MAX)]));
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn ninety_thousand_elections_observed_on_one_connection_are_refused_above_the_bound() {
    check_one_connection(90_000, 90_000).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_hundred_thousand_observers_of_one_election_are_refused_above_the_bound() {
    check_one_connection(100_000, 1).await;
}

#[tokio::test(flavor = "current_thread")]
async fn observers_of_one_identity_are_bounded_and_end_with_their_connection() {
    let mut node = Node::start(NodeConfig::in_memory()).await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..PER_IDENTITY_MAX / PER_CONNECTION_MAX {
        let mut client = Client::new(&mut node);
        assert_eq!(client.observe(names(PER_CONNECTION_MAX, 7)).await, BTreeMap::new());
        clients.push(client);
    }
    let mut next = Client::new(&mut node);
    assert_eq!(next.observe(names(3, 3)).await, BTreeMap::from([("limit".to_owned(), 3)]));
    // Without the end of their connection they would wait for half a minute.
    drop(clients);
    let began = tokio::time::Instant::now();
    until("room for another observer", async || next.observe(names(1, 1)).await.is_empty().then_some(()))
        .await;
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    node.stop().await;
}

/// Counts the records that all observers together read when the leader of a contended election changes.
#[cfg(feature = "simulation")]
#[tokio::test(flavor = "current_thread")]
async fn an_observer_reads_the_leader_and_not_the_queue() {
    use lockkeeper_core::{Acquire, Command, Locks, Wait, reads};

    const WAITERS: usize = 1_000;
    const OBSERVERS: usize = 500;
    let mut node = Node::start(NodeConfig::in_memory()).await.unwrap();
    let (session, _) = node.api().open_session(3_600_000, "candidate".into()).await.unwrap();
    let election = || Locks::One("election/db".into());
    let leader = node.api().acquire(Acquire::new(session, election())).await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..WAITERS {
        let api = node.api().clone();
        let request = Acquire {
            request: Some(format!("r-{number}").into()),
            wait: Wait::Forever,
            ..Acquire::new(session, election())
        };
        waiters.spawn(async move { api.acquire(request).await });
    }
    until("all candidates", async || (node.api().status().waiting == WAITERS as u64).then_some(())).await;

    let mut client = Client::new(&mut node);
    let observe = |id| {
        let request = v1::ObserveElectionRequest {
            election: "db".to_owned(),
            known_epoch: Some(leader.token.0),
            wait_ms: 0,
        };
        v1::Operation { id, kind: Some(operation::Kind::ObserveElection(request)) }
    };
    client
        .frames
        .send(v1::ClientFrame { operations: (1..=OBSERVERS as u64).map(observe).collect() })
        .await
        .unwrap();
    reads::take();
    let lock = "election/db".into();
    node.api().command(Command::Release { session, lock, token: leader.token, forget: true }).await.unwrap();
    let mut seen = 0;
    while seen < OBSERVERS {
        let frame = tokio::time::timeout(LONG, client.answers.recv()).await.expect("in time").expect("open");
        assert!(
            frame.answers.iter().all(|it| matches!(it.kind, Some(answer::Kind::Election(_)))),
            "{frame:?}"
        );
        seen += frame.answers.len();
    }
    let records = reads::take();
    println!("{OBSERVERS} observers read {records} records");
    // Each reads at its start, at the change, and twice for each check of the leadership meanwhile; not 1,000 candidates each.
    assert!(records < 100 * OBSERVERS as u64, "{records} records were read");
    node.stop().await;
}
