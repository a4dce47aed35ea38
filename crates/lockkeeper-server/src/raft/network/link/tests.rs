use lockkeeper_api::peer::peer_answer::Kind as AnswerKind;
use openraft::testing::log_id;
use tokio::net::TcpListener;

use super::*;
use crate::data_dir::DataDir;
use crate::formation::versions::Versions;
use crate::metrics::MemberCounters;
use crate::raft::acks::Acks;
use crate::raft::agreement::Agreement;
use crate::raft::network::direct::{Direct, Incoming, Outgoing};
use crate::raft::network::{Dialer, codec};
use crate::raft::timing::Timing;

const PROMISE_MS: u64 = 300;

fn leader() -> Vote {
    Vote::new_committed(1, 1)
}

/// A link to a follower that is played by the test.
struct Fixture {
    link: Link,
    shared: Arc<Shared>,
    follower: TcpListener,
}

impl Fixture {
    async fn new() -> Fixture {
        let follower = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let member = Member { peer: follower.local_addr().unwrap().to_string(), ..Member::default() };
        let shared = Arc::new(Shared {
            home: Arc::new(DataDir::in_memory(1).unwrap()),
            dialer: Dialer::default(),
            acks: Arc::new(Acks::default()),
            timing: Timing::default(),
            counters: MemberCounters::default(),
            versions: Versions::RELEASED,
            agreement: Arc::new(Agreement::new(1)),
            space_reports: Arc::default(),
        });
        Fixture { link: Link::open(shared.clone(), 2, member), shared, follower }
    }

    /// Accepts the next connection, whose first request identifies its sender.
    async fn accept(&self) -> (Incoming, Outgoing) {
        let (stream, _) = self.follower.accept().await.unwrap();
        let (mut incoming, mut outgoing) =
            Direct::accept(lockkeeper_net::net::Stream::Tcp(stream)).await.unwrap();
        let first = next(&mut incoming).await;
        assert_eq!(first.header.map(|header| (header.from, header.to)), Some((1, 2)));
        assert_eq!((first.id, first.kind), (1, Some(Kind::Ping(peer::Ping {}))));
        answer(&mut outgoing, 1, AnswerKind::Pong(peer::Pong { format_min: 1, format_max: 1 })).await;
        (incoming, outgoing)
    }

    fn is_acknowledged(&self) -> bool {
        let groups = [[1, 2, 3].into_iter().collect()];
        let majority =
            self.shared.acks.majority((1, Instant::now()), leader(), &groups, |ack| Some(ack.sent));
        majority.is_some()
    }
}

/// Returns the next request that is not a ping, or the first one.
async fn next(incoming: &mut Incoming) -> peer::PeerRequest {
    loop {
        let request = incoming.next::<peer::PeerRequest>().await.unwrap().unwrap();
        if request.id == 1 || !matches!(request.kind, Some(Kind::Ping(_))) {
            return request;
        }
    }
}

async fn answer(outgoing: &mut Outgoing, id: u64, kind: AnswerKind) {
    outgoing.push(&peer::PeerAnswer { id, kind: Some(kind), ..Default::default() });
    outgoing.write().await.unwrap();
}

fn accepted() -> AnswerKind {
    let result: AppendResult = Ok(Some(log_id::<TypeConfig>(1, 1, 7)));
    let body = codec::encode(&result).unwrap();
    AnswerKind::Append(peer::AppendAnswer { body, promise_ms: PROMISE_MS, ..Default::default() })
}

fn heartbeat() -> Kind {
    Kind::Heartbeat(peer::AppendRequest::default())
}

#[tokio::test]
async fn a_heartbeat_is_answered_before_earlier_entries() {
    let fixture = Fixture::new().await;
    let (mut incoming, mut outgoing) = fixture.accept().await;
    let mut stream = fixture.link.open_stream(1, Duration::from_secs(5)).await.unwrap();
    let reserved = stream.reserve().await.unwrap();
    stream.send(reserved, Bytes::from_static(b"entries"), leader(), None);
    let append = next(&mut incoming).await;
    assert!(matches!(append.kind, Some(Kind::Append(_))));
    let follower = async {
        let request = next(&mut incoming).await;
        assert_eq!(request.kind, Some(heartbeat()));
        answer(&mut outgoing, request.id, accepted()).await;
    };
    let (answered, ()) = tokio::join!(fixture.link.call(heartbeat(), Some(leader())), follower);
    assert!(matches!(answered, Ok(LinkAnswer::Append(Ok(_)))));
    assert!(!stream.is_idle(), "the entries are not answered yet");
    answer(&mut outgoing, append.id, accepted()).await;
    assert!(stream.next_answer().await.unwrap().is_ok());
    assert!(stream.is_idle());
}

#[tokio::test]
async fn an_answer_counts_for_the_lease_after_its_caller_has_given_up() {
    let fixture = Fixture::new().await;
    let (mut incoming, mut outgoing) = fixture.accept().await;
    let given_up = timeout(Duration::from_millis(50), fixture.link.call(heartbeat(), Some(leader()))).await;
    assert!(given_up.is_err());
    let request = next(&mut incoming).await;
    assert!(!fixture.is_acknowledged());
    answer(&mut outgoing, request.id, accepted()).await;
    while !fixture.is_acknowledged() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_connection_that_does_not_answer_is_replaced_and_ends_its_streams() {
    let fixture = Fixture::new().await;
    let (_incoming, _outgoing) = fixture.accept().await;
    let mut stream = fixture.link.open_stream(1, Duration::from_secs(5)).await.unwrap();
    let reserved = stream.reserve().await.unwrap();
    stream.send(reserved, Bytes::from_static(b"entries"), leader(), None);
    assert!(stream.next_answer().await.is_err());
    let (mut incoming, mut outgoing) = fixture.accept().await;
    let follower = async {
        let request = next(&mut incoming).await;
        answer(&mut outgoing, request.id, accepted()).await;
    };
    let (answered, ()) = tokio::join!(fixture.link.call(heartbeat(), Some(leader())), follower);
    assert!(answered.is_ok());
}

#[tokio::test]
async fn a_stream_takes_no_more_than_its_window() {
    let fixture = Fixture::new().await;
    let (mut incoming, _outgoing) = fixture.accept().await;
    let mut stream = fixture.link.open_stream(1, Duration::from_secs(5)).await.unwrap();
    for _ in 0..WINDOW_REQUESTS {
        assert!(stream.has_room());
        let reserved = stream.reserve().await.unwrap();
        stream.send(reserved, Bytes::from_static(b"entries"), leader(), None);
        next(&mut incoming).await;
    }
    assert!(!stream.has_room());
    // A request that is larger than the window is sent alone.
    let mut stream = fixture.link.open_stream(2, Duration::from_secs(5)).await.unwrap();
    let reserved = stream.reserve().await.unwrap();
    stream.send(reserved, Bytes::from(vec![7; WINDOW_BYTES]), leader(), None);
    assert!(!stream.has_room());
}
