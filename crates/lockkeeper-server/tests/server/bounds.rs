//! Bounds on what callers can make a node keep or send: answers, HTTP/2 windows and streams that watch the health.

use std::time::Duration;

use lockkeeper_core::{Acquire, Locks, Wait};
use lockkeeper_server::{Node, NodeConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::http;
use crate::support::{LONG, until};

const ANSWER_BYTES_MAX: usize = 1 << 20;

#[tokio::test(flavor = "current_thread")]
async fn answer_with_the_longest_candidates_has_a_bounded_size() {
    const CANDIDATES: u64 = 300;
    let (node, client) = http::start().await;
    let (session, _) = node.api().open_session(3_600_000, "\u{1}".repeat(500).as_str().into()).await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for number in 0..CANDIDATES {
        let api = node.api().clone();
        let request = Acquire {
            request: Some(format!("r-{number}").into()),
            wait: Wait::Forever,
            // Each takes six bytes in JSON.
            value: Some("\u{1}".repeat(4_096).into()),
            ..Acquire::new(session, Locks::One("election/db".into()))
        };
        waiting.spawn(async move { api.acquire(request).await });
    }
    until("all candidates", async || (node.api().status().waiting == CANDIDATES - 1).then_some(())).await;
    for path in ["/v1/lock?name=election%2Fdb", "/v1/locks?limit=1000"] {
        let answer = client.get(path).await;
        assert_eq!(answer.status, 200);
        let bytes = answer.body.len();
        assert!(bytes <= ANSWER_BYTES_MAX, "{path}: {bytes} bytes");
    }
    let lock = client.get("/v1/lock?name=election%2Fdb").await.ok();
    assert_eq!(lock["waiting"], CANDIDATES - 1, "the number is complete");
    assert_eq!(lock["holders"].as_array().unwrap().len(), 1);
    let shown = lock["queue"].as_array().unwrap().len();
    assert!((10..100).contains(&shown), "{shown} candidates are shown");
}

/// What a client can make the node's HTTP/2 library keep before anything is read: the window that it announces.
#[tokio::test(flavor = "current_thread")]
async fn many_http2_connections_have_a_small_window_each() {
    const CONNECTIONS: usize = 200;
    /// The limit for all connections together: 64 KiB for each of the 20,000 that a node accepts.
    const WINDOWS_BYTES_MAX: usize = 1_280 << 20;
    const CONNECTIONS_MAX: usize = 20_000;
    let (_node, client) = http::start().await;
    let (mut windows, mut open) = (0, Vec::new());
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(client.address).await.unwrap();
        // Its preface and empty settings, and a ping, which is answered after the node's own settings.
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        stream.write_all(b"\0\0\x08\x06\0\0\0\0\0pingpong").await.unwrap();
        windows += tokio::time::timeout(LONG, announced_window(&mut stream)).await.expect("in time");
        open.push(stream);
    }
    let each = windows / CONNECTIONS;
    assert!(each * CONNECTIONS_MAX <= WINDOWS_BYTES_MAX, "{each} bytes for each connection");
}

/// Reads frames up to the answer to the ping. Returns the larger one of the windows of a stream and of the connection.
async fn announced_window(stream: &mut TcpStream) -> usize {
    let (mut of_stream, mut of_connection) = (65_535, 65_535);
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.unwrap();
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap()) as usize;
        match head[3] {
            // SETTINGS_INITIAL_WINDOW_SIZE.
            4 => payload.chunks_exact(6).filter(|it| it[1] == 4).for_each(|it| of_stream = number(&it[2..])),
            6 => return of_stream.max(of_connection),
            8 => of_connection += number(&payload),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn one_connection_watches_the_health_a_few_times() {
    const WATCHES_MAX: usize = 4;
    let mut node = Node::start(NodeConfig::in_memory()).await.unwrap();
    let address = node.listen("127.0.0.1:0").await.unwrap();
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut health = HealthClient::new(channel);
    let mut watches = Vec::new();
    for service in ["", "unknown", "lockkeeper.v1.Lockkeeper", ""] {
        let request = HealthCheckRequest { service: service.into() };
        let mut watch = health.watch(request).await.unwrap().into_inner();
        let first = tokio::time::timeout(LONG, watch.message()).await.expect("in time").unwrap();
        assert_eq!(first.expect("a status").status, if service == "unknown" { 3 } else { 1 }, "{service}");
        watches.push(watch);
    }
    assert_eq!(watches.len(), WATCHES_MAX);
    let refused = health.watch(HealthCheckRequest::default()).await.expect_err("it is refused");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    // Checks are not counted, and a watch that ends makes room.
    health.check(HealthCheckRequest::default()).await.unwrap();
    watches.pop();
    until("room for another", async || health.watch(HealthCheckRequest::default()).await.ok()).await;
    // Without a change, nothing more is sent.
    let quiet = tokio::time::timeout(Duration::from_millis(500), watches[0].message()).await;
    assert!(quiet.is_err(), "{quiet:?}");
}
