//! Connection limits: idle clients use up the connections of clients only.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_net::frame::{GREETING, MEMBERS_GREETING};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::connections::TestNode;
use crate::fixture::{Caller, SecureNode, SecureNodeOptions};
use crate::harness::cell::Cell;
use crate::harness::{LONG, attempts, http, until};
use crate::http2;

const CONNECTIONS: usize = 60;
/// More HTTP connections than a full node serves beside its clients.
const IDLE_HTTP: usize = 360;
/// Requests while these connections are renewed: for longer than the lifetime of each.
const ATTEMPTS: u32 = 14;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(500);
/// How long an idle HTTP connection waits before it is opened again, if it was refused.
const REFUSED_PAUSE: Duration = Duration::from_secs(2);

/// Opens idle clients, which send one frame, until no connection is free.
async fn idle_clients(address: &str) -> Vec<TcpStream> {
    let mut idle = Vec::new();
    loop {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The greeting and an empty frame.
        let sent = stream.write_all(&[&GREETING[..], &[0; 4]].concat()).await;
        if sent.is_err() || stream.read_exact(&mut [0; GREETING.len()]).await.is_err() {
            return idle;
        }
        idle.push(stream);
        assert!(idle.len() <= CONNECTIONS, "the number of connections is not bounded");
    }
}

/// Keeps an HTTP connection open: idle after an answer, in the middle of a head, or idle with HTTP/2. Opens it again when it
/// is closed.
async fn keep_idle_http(caller: Caller, number: usize, opened: Arc<AtomicUsize>) {
    const WHOLE: &[u8] = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    const STALLED: &[u8] = b"GET /livez HTTP/1.1\r\nhost: ";
    let bytes = [WHOLE, STALLED, PREFACE][number % 3];
    loop {
        let began = Instant::now();
        if let Ok(mut stream) = caller.credentials().connect(&caller.address, None, |_| Ok(())).await {
            drop(stream.write_all(bytes).await);
            drop(stream.flush().await);
            opened.fetch_add(1, Ordering::Relaxed);
            drop(stream.read_to_end(&mut Vec::new()).await);
        }
        if began.elapsed() < REFUSED_PAUSE {
            tokio::time::sleep(REFUSED_PAUSE).await;
        }
    }
}

/// Opens idle HTTP connections, which are renewed until the set is dropped.
async fn idle_http(caller: &Caller) -> tokio::task::JoinSet<()> {
    let opened = Arc::new(AtomicUsize::new(0));
    let mut idle = tokio::task::JoinSet::new();
    for number in 0..IDLE_HTTP {
        idle.spawn(keep_idle_http(caller.clone(), number, opened.clone()));
    }
    until("all idle HTTP connections", async || (opened.load(Ordering::Relaxed) >= IDLE_HTTP).then_some(()))
        .await;
    idle
}

#[tokio::test]
async fn connection_that_stalls_after_the_greeting_is_closed() {
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    let began = Instant::now();
    let tries = [("a client", &GREETING[..]), ("a member", MEMBERS_GREETING), ("HTTP/2", PREFACE)];
    let all = tries.map(|(what, greeting)| async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(greeting).await.unwrap();
        let mut rest = Vec::new();
        let end = tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await;
        assert!(end.is_ok(), "{what}: still open");
    });
    futures_util::future::join_all(all).await;
    assert!(began.elapsed() > Duration::from_secs(9), "after {:?}, for another reason", began.elapsed());
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::test]
async fn full_node_answers_health_checks_and_explains_refusals() {
    let plain = TestNode::start(&["--connections-max", "60"]).await;
    let address = &plain.node.address;
    let idle = idle_clients(address).await;
    for path in ["/livez", "/readyz"] {
        assert_eq!(http::get(address, path).await.unwrap().status, 200, "{path}");
    }
    let refused = http::get(address, "/v1/locks").await.unwrap();
    assert_eq!((refused.status, refused.code()), (429, "limit"));
    assert!(refused.body["error"]["message"].as_str().unwrap().contains("--connections-max"), "{refused:?}");
    let caller = Caller { address: address.clone(), ca: None, own: None, token: None };
    let idle_http = idle_http(&caller).await;
    for attempt in 0..ATTEMPTS {
        for path in ["/livez", "/readyz"] {
            let answer = http::get(address, path).await;
            assert_eq!(answer.map(|answer| answer.status).ok(), Some(200), "{path}, attempt {attempt}");
        }
        tokio::time::sleep(ATTEMPT_PAUSE).await;
    }
    drop((idle, idle_http));
    until("a free connection", async || {
        http::get(address, "/v1/locks").await.ok().filter(|answer| answer.status == 200)
    })
    .await;
}

#[tokio::test]
async fn full_node_serves_its_administrator() {
    let words = ["--connections-max".to_owned(), "60".to_owned()];
    let secure = SecureNode::with(SecureNodeOptions {
        root_token: true,
        words: words.to_vec(),
        ..SecureNodeOptions::default()
    })
    .await;
    let ci = secure.caller_with("ci", "", &["acquire"]).await;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = ci.credentials().connect(&secure.node.address, None, |_| Ok(())).await.unwrap();
        stream.write_all(GREETING).await.unwrap();
        stream.flush().await.unwrap();
        if stream.read_exact(&mut [0; GREETING.len()]).await.is_err() {
            break;
        }
        idle.push(stream);
    }
    ci.read("/v1/locks").await.assert_refused(429, "limit");
    secure.root().read("/v1/locks").await.ok();
    let _idle_http = idle_http(&secure.anonymous()).await;
    for _ in 0..ATTEMPTS {
        secure.root().read("/livez").await.ok();
        secure.root().read("/v1/locks").await.ok();
        tokio::time::sleep(ATTEMPT_PAUSE).await;
    }
    ci.read("/v1/locks").await.assert_refused(429, "limit");
}

/// Both followers are full: their leader still reaches them and keeps its leadership.
#[tokio::test]
async fn idle_clients_do_not_depose_a_leader() {
    let mut cell = Cell::plan(3);
    let list = cell.list();
    let words = ["--cell", &list, "--connections-max", "60"];
    for id in 1..=3 {
        cell.spawn_with(id, &words);
    }
    let (mut idle, mut leader, mut other) = (Vec::new(), 0, 0);
    // A busy machine can delay heartbeats for too long now and then.
    attempts(3, async || {
        idle.clear();
        leader = cell.until_agreed().await;
        let term = cell.node(leader).leading_term().await;
        for follower in cell.others(leader) {
            idle.extend(idle_clients(&cell.node(follower).listen_addr).await);
        }
        // One follower is killed: the other two need each other for a quorum.
        let one = cell.others(leader)[0];
        other = cell.others(leader)[1];
        cell.kill(one);
        for _ in 0..20 {
            crate::harness::client::open_session(&cell, 10_000).await;
        }
        let after = cell.node(leader).leading_term().await;
        if after == term {
            return Ok(());
        }
        idle.clear();
        cell.spawn_with(one, &words);
        Err(format!("node {leader} led in term {term:?}, then in term {after:?}"))
    })
    .await;
    cell.kill(leader);
    cell.spawn_with(leader, &words);
    // By health check, because one of them serves nothing else now.
    until("a leader again", async || {
        for id in [leader, other] {
            let ready = http::quick_get(&cell.node(id).listen_addr, "/readyz?verbose").await;
            if ready.is_some_and(|ready| ready.body["checks"]["role"] == "leader") {
                return Some(());
            }
        }
        None
    })
    .await;
    drop(idle);
}

/// Claims to be a member, and reconnects when the connection is closed.
async fn keep_claiming_to_be_a_member(address: String, number: usize, sent: Arc<AtomicUsize>) {
    let caller = Caller { address: address.clone(), ca: None, own: None, token: None };
    let join = http2::grpc_request(1, &caller, "/lockkeeper.peer.v1.Peer/Join", &[0; 5], true);
    let bytes = match number % 2 {
        0 => MEMBERS_GREETING.to_vec(),
        _ => [http2::preface(1 << 16), join].concat(),
    };
    loop {
        let Ok(mut stream) = TcpStream::connect(&address).await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        drop(stream.write_all(&bytes).await);
        sent.fetch_add(1, Ordering::Relaxed);
        drop(stream.read_to_end(&mut Vec::new()).await);
    }
}

/// More than the limit on member connections.
const MEMBER_CLAIMS: usize = 400;

#[tokio::test]
async fn forged_members_do_not_block_members() {
    let mut cell = Cell::start(3).await;
    let leader = cell.leader().await;
    let [one, other] = cell.others(leader)[..] else { panic!("three nodes") };
    cell.kill(one);
    let sent = Arc::new(AtomicUsize::new(0));
    let mut strangers = tokio::task::JoinSet::new();
    for number in 0..2 * MEMBER_CLAIMS {
        let id = if number < MEMBER_CLAIMS { leader } else { other };
        let address = cell.node(id).listen_addr.clone();
        strangers.spawn(keep_claiming_to_be_a_member(address, number, sent.clone()));
    }
    until("all forged members", async || (sent.load(Ordering::Relaxed) >= 2 * MEMBER_CLAIMS).then_some(()))
        .await;
    // The restarted node needs connections to the other two, and they to it.
    cell.spawn(one);
    cell.until_agreed().await;
    cell.kill(leader);
    cell.leader().await;
}
