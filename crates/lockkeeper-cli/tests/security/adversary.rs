//! An adversary with ordinary rights runs every operation in its most expensive form, on all protocols at once, against a
//! node whose memory is capped. The node stays under its cap, and nobody else's keep-alive waits for long.

use std::process::Command;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use lockkeeper_proto::frame::{self, GREETING};
use lockkeeper_proto::v1;
use lockkeeper_proto::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_proto::v1::operation::Kind;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::crowd::Plain;
use crate::harness::http;
use crate::stage::Caller;
use crate::windows;

/// How long the adversary is at work.
const ATTACK: Duration = Duration::from_secs(12);
/// The node's cap on private memory, far below what a single unbounded request used to take.
const CAP_MIB: u64 = 768;
/// What a keep-alive of somebody else may take. The node of the tests is not optimised, and the machine may be busy.
const KEEP_ALIVE_WITHIN: Duration = Duration::from_millis(if cfg!(debug_assertions) { 3_000 } else { 500 });

/// Every kind of operation, as expensive as it gets.
fn expensive(session: &str, round: u64) -> Vec<Kind> {
    let long = "n".repeat(400);
    let session = session.to_owned();
    vec![
        Kind::ListLocks(v1::ListLocksRequest { limit: 1_000, ..Default::default() }),
        Kind::GetLock(v1::GetLockRequest { lock: "adversary/shared".into() }),
        Kind::GetValue(v1::GetValueRequest { key: "adversary/value".into() }),
        Kind::GetHistory(v1::GetHistoryRequest { lock: "adversary/shared".into(), ..Default::default() }),
        Kind::GetAudit(v1::GetAuditRequest::default()),
        Kind::GetTop(v1::GetTopRequest::default()),
        Kind::GetWaitGraph(v1::GetWaitGraphRequest::default()),
        Kind::Status(v1::StatusRequest {}),
        Kind::CheckToken(v1::CheckTokenRequest {
            lock: "adversary/shared".into(),
            token: 1,
            ..Default::default()
        }),
        Kind::KeepAlive(v1::KeepAliveAll { sessions: vec![session.clone(); 1_000] }),
        Kind::PutValue(v1::PutValueRequest {
            key: format!("adversary/{}", round % 16),
            value: vec![1; 60 << 10],
            ..Default::default()
        }),
        Kind::TakeRate(v1::TakeRateRequest {
            limiter: format!("adversary/{round}{long}"),
            rate_per_s: 1.0,
            burst: 1,
            ..Default::default()
        }),
        Kind::Acquire(v1::AcquireRequest {
            session: session.clone(),
            lock: "adversary/shared".into(),
            wait_forever: true,
            request: "the same".into(),
            ..Default::default()
        }),
        Kind::AcquireAll(v1::AcquireAllRequest {
            session: session.clone(),
            locks: (0..50).map(|number| format!("adversary/{long}/{number}")).collect(),
            ..Default::default()
        }),
        Kind::ObserveElection(v1::ObserveElectionRequest {
            election: format!("adversary/{round}"),
            known_epoch: Some(0),
            ..Default::default()
        }),
    ]
}

async fn open(address: &str) -> String {
    let opened = http::post(address, "/v1/session/open", &json!({"ttl_ms": 600_000})).await.unwrap().ok();
    opened["session"].as_str().unwrap().to_owned()
}

/// Frames straight on TCP: one connection that never reads, again and again; and one that reads.
async fn over_frames(address: String, session: String, reads: bool) {
    for round in 0_u64.. {
        let Ok(mut stream) = TcpStream::connect(&address).await else { continue };
        let kinds = expensive(&session, round);
        let operations =
            (1..=2_000).map(|id| v1::Operation { id, kind: Some(kinds[id as usize % kinds.len()].clone()) });
        // The largest are once in each frame.
        let operations = operations.filter(|it| {
            it.id < 100
                || !matches!(it.kind, Some(Kind::PutValue(_) | Kind::KeepAlive(_) | Kind::AcquireAll(_)))
        });
        let mut bytes = BytesMut::from(&GREETING[..]);
        frame::encode(&v1::ClientFrame { operations: operations.collect() }, &mut bytes);
        let _ = stream.write_all(&bytes).await;
        let read = async {
            let mut buffer = vec![0; 1 << 16];
            while reads && stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
            std::future::pending::<()>().await;
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), read).await;
    }
}

/// HTTP/2 without windows.
async fn over_http2(address: String) {
    loop {
        let mut stream = windows::connect(&address, 0).await;
        windows::ask_for_listings(&mut stream, &address, 200).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Single gRPC calls, as many at once as a connection takes.
async fn over_grpc(address: String) {
    let caller = Caller { address, ca: None, own: None, token: None };
    let channel = caller.channel().await.unwrap();
    loop {
        let calls = (0..100).map(|_| {
            let mut node = LockkeeperClient::new(channel.clone()).max_decoding_message_size(16 << 20);
            async move {
                let _ = node.list_locks(v1::ListLocksRequest { limit: 1_000, ..Default::default() }).await;
            }
        });
        futures_util::future::join_all(calls).await;
    }
}

/// HTTP/1.
async fn over_http(address: String) {
    loop {
        for path in ["/v1/locks?limit=1000", "/v1/graph", "/v1/top", "/v1/sessions?limit=1000", "/metrics"] {
            let _ = http::get(&address, path).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_stays_under_its_cap_and_serves_others() {
    let plain = Plain::start(&[]).await;
    let address = plain.node.address.clone();
    let limited = Command::new("prlimit")
        .args(["--pid", &plain.process().to_string(), &format!("--data={}", CAP_MIB << 20)])
        .status()
        .expect("prlimit (util-linux)");
    assert!(limited.success());
    windows::fill(&address).await;
    let value = json!({"key": "adversary/value", "value": "v".repeat(60 << 10)});
    http::post(&address, "/v1/value/put", &value).await.unwrap().ok();
    let (holder, adversary, victim) = (open(&address).await, open(&address).await, open(&address).await);
    let held = json!({"session": holder, "lock": "adversary/shared"});
    http::post(&address, "/v1/lock/acquire", &held).await.unwrap().ok();
    let mut attack = tokio::task::JoinSet::new();
    for reads in [true, false, false] {
        attack.spawn(over_frames(address.clone(), adversary.clone(), reads));
    }
    attack.spawn(over_http2(address.clone()));
    attack.spawn(over_grpc(address.clone()));
    attack.spawn(over_http(address.clone()));
    let (began, mut slowest, mut most, mut renewed) = (Instant::now(), Duration::ZERO, 0, 0);
    let mut connection = http::Http::connect(&address).await.unwrap();
    while began.elapsed() < ATTACK {
        let sent = Instant::now();
        connection.post("/v1/session/keepalive", &json!({"session": victim})).await.unwrap().ok();
        slowest = slowest.max(sent.elapsed());
        most = most.max(plain.memory_mib());
        renewed += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    attack.shutdown().await;
    println!("{renewed} keep-alives, the slowest {slowest:?}; at most {most} MiB of {CAP_MIB}");
    assert!(slowest < KEEP_ALIVE_WITHIN, "a keep-alive waited for {slowest:?}");
    assert!(most < CAP_MIB, "{most} MiB");
    plain.works().await;
}
