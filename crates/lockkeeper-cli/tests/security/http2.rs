//! Hand-written HTTP/2 clients that request large answers without a flow-control window, which no client library does.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use futures_util::future::join_all;
use lockkeeper_api::v1;
use lockkeeper_api::v1::operation::Kind;
use lockkeeper_net::frame::GREETING;
use prost::Message;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::transport::Channel;
use tower_service::Service;

use crate::connections::TestNode;
use crate::fixture::Caller;
use crate::harness::{LONG, http};

const PING: u8 = 6;
const ACK: u8 = 1;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: u8 = 4;
pub const HEADERS: u8 = 1;
const DATA: u8 = 0;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const END_STREAM_AND_HEADERS: u8 = 0x5;
/// Maximum frame size that every peer accepts.
const FRAME_BYTES: usize = 16 << 10;
const INITIAL_WINDOW_SIZE: u16 = 4;
/// Maximum memory growth for all of them, in MiB. Without the byte budget, each connection takes 230 MB.
const GROWTH_MAX: u64 = 100;
const STREAMS: u32 = 200;
/// How long a client may leave its answers unread.
const STALLED_FOR: Duration = Duration::from_secs(30);
const CONNECTIONS: usize = 5;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header as an HPACK literal.
pub fn header(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0, name.len() as u8];
    bytes.extend(name.as_bytes());
    bytes.push(value.len() as u8);
    bytes.extend(value.as_bytes());
    bytes
}

/// The headers of a request.
pub fn head(method: &str, caller: &Caller, path: &str) -> Vec<u8> {
    let address = caller.address.as_str();
    let headers = [(":method", method), (":scheme", "http"), (":authority", address), (":path", path)];
    let mut block: Vec<u8> = headers.iter().flat_map(|(name, value)| header(name, value)).collect();
    if let Some(token) = &caller.token {
        block.extend(header("authorization", &format!("Bearer {token}")));
    }
    block
}

/// A request without a body.
pub fn read_request(id: u32, method: &str, caller: &Caller, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM_AND_HEADERS, id, &head(method, caller, path))
}

/// The same with the content type of gRPC.
pub fn grpc_typed_request(id: u32, caller: &Caller, path: &str) -> Vec<u8> {
    let block = [head("GET", caller, path), header("content-type", "application/grpc")].concat();
    frame(HEADERS, END_STREAM_AND_HEADERS, id, &block)
}

/// Sends requests for all paths at once.
pub async fn send_requests<'a>(
    stream: &mut TcpStream,
    caller: &Caller,
    paths: impl IntoIterator<Item = &'a str>,
) {
    let requests = paths.into_iter().zip((1..).step_by(2));
    let requests = requests.flat_map(|(path, id)| read_request(id, "GET", caller, path));
    // A closed connection has sent enough.
    let _ = stream.write_all(&requests.collect::<Vec<u8>>()).await;
}

/// A frame from the node.
pub struct Received {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

pub async fn receive(stream: &mut TcpStream) -> io::Result<Received> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload).await?;
    let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Ok(Received { kind: head[3], flags: head[4], stream: id, payload })
}

/// Answers the pings of the node, and opens no window for answers. Returns the bytes of answers that arrived before the node
/// closed the connection.
pub async fn leave_unread(stream: &mut TcpStream) -> usize {
    let mut bytes = 0;
    while let Ok(received) = receive(stream).await {
        if received.kind == DATA {
            bytes += received.payload.len();
        }
        let is_ping = (received.kind, received.flags) == (PING, 0);
        if is_ping && stream.write_all(&frame(PING, ACK, 0, &received.payload)).await.is_err() {
            break;
        }
    }
    bytes
}

/// Starts gRPC client streams, each with the first bytes of a message of 4 MiB.
pub async fn send_partial_messages(stream: &mut TcpStream, caller: &Caller, streams: u32, bytes: usize) {
    let mut sent = Vec::new();
    let message: Vec<u8> = [&[0, 0, 0x40, 0, 0][..], &vec![0x0a; bytes]].concat();
    for id in (1..).step_by(2).take(streams as usize) {
        sent.extend(grpc_request(id, caller, "/lockkeeper.v1.Lockkeeper/Stream", &message, false));
    }
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(&sent)).await;
}

/// The preface of a connection with this initial window.
pub fn preface(window: u32) -> Vec<u8> {
    let mut setting = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
    setting.extend(window.to_be_bytes());
    [PREFACE, &frame(SETTINGS, 0, 0, &setting)].concat()
}

/// Opens a connection with this initial window.
pub async fn connect(address: &str, window: u32) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&preface(window)).await.unwrap();
    stream
}

/// A message with its prefix.
pub fn grpc_message(message: &[u8]) -> Vec<u8> {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

/// A gRPC call with a possibly incomplete message.
pub fn grpc_request(id: u32, caller: &Caller, path: &str, message: &[u8], ends: bool) -> Vec<u8> {
    let mut block = head("POST", caller, path);
    block.extend([header("content-type", "application/grpc"), header("te", "trailers")].concat());
    let mut sent = frame(HEADERS, END_HEADERS, id, &block);
    sent.extend(message.chunks(FRAME_BYTES).flat_map(|part| frame(DATA, 0, id, part)));
    if ends {
        sent.extend(frame(DATA, END_STREAM, id, &[]));
    }
    sent
}

/// Sends a second request on a connection.
pub async fn send_another_request(stream: &mut TcpStream, caller: &Caller, path: &str) {
    let request = frame(HEADERS, END_STREAM_AND_HEADERS, 3, &head("GET", caller, path));
    stream.write_all(&request).await.unwrap();
}

/// A caller of a node without authentication.
pub fn open(address: &str) -> Caller {
    Caller { address: address.to_owned(), ca: None, own: None, token: None }
}

/// Requests many listings at once.
pub async fn request_listings(stream: &mut TcpStream, address: &str, streams: u32) {
    send_requests(stream, &open(address), std::iter::repeat_n("/v1/locks?limit=1000", streams as usize))
        .await;
}

/// Creates locks whose listing is about half a megabyte.
pub async fn create_locks(address: &str) {
    let owner = "o".repeat(200);
    let opened = http::post(address, "/v1/session/open", &json!({"ttl_ms": 600_000, "owner": owner})).await;
    let session = opened.unwrap().ok()["session"].clone();
    let mut connection = http::Http::connect(address).await.unwrap();
    for page in 0..20 {
        let locks: Vec<String> =
            (0..50).map(|number| format!("{}/{page}/{number}", "l".repeat(200))).collect();
        let request = json!({"session": session, "locks": locks});
        connection.post("/v1/lock/acquire_all", &request).await.unwrap().ok();
    }
}

#[tokio::test]
async fn answers_without_a_window_do_not_fill_the_memory() {
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    create_locks(address).await;
    plain.assert_works().await;
    let before = plain.memory_mib();
    let mut connections = Vec::new();
    for window in [0, 0, 1, 100, 20_000] {
        let mut stream = connect(address, window).await;
        request_listings(&mut stream, address, STREAMS).await;
        connections.push(stream);
    }
    assert_eq!(connections.len(), CONNECTIONS);
    let mut peak = 0;
    for _ in 0..60 {
        plain.assert_works().await;
        peak = peak.max(plain.memory_mib());
        assert!(peak < before + GROWTH_MAX, "{before} MiB before, {peak} MiB now");
    }
    println!(
        "{before} MiB before, {peak} MiB with {CONNECTIONS} connections that ask for {STREAMS} listings each"
    );
}

/// Frames on gRPC streams are large, and HTTP/2 takes one of each stream before there is a window for it.
#[tokio::test]
async fn frames_without_a_window_do_not_fill_the_memory() {
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    create_locks(address).await;
    plain.assert_works().await;
    let before = plain.memory_mib();
    let list = Kind::ListLocks(v1::ListLocksRequest { limit: 1_000, ..Default::default() });
    let operations = (1..=4).map(|id| v1::Operation { id, kind: Some(list.clone()) }).collect();
    let lists = grpc_message(&v1::ClientFrame { operations }.encode_to_vec());
    let mut connections = Vec::new();
    for window in [0, 1] {
        let mut stream = connect(address, window).await;
        let calls = (1..).step_by(2).take(STREAMS as usize);
        let calls = calls.flat_map(|id| {
            grpc_request(id, &open(address), "/lockkeeper.v1.Lockkeeper/Stream", &lists, false)
        });
        stream.write_all(&calls.collect::<Vec<u8>>()).await.unwrap();
        connections.push(stream);
    }
    let mut peak = 0;
    for _ in 0..60 {
        plain.assert_works().await;
        peak = peak.max(plain.memory_mib());
        assert!(peak < before + GROWTH_MAX, "{before} MiB before, {peak} MiB now");
    }
    println!(
        "{before} MiB before, {peak} MiB with {STREAMS} streams on each of {} connections",
        connections.len()
    );
}

/// The status of a GET with the content type of gRPC.
async fn grpc_status_of(mut channel: Channel, path: &str) -> Option<String> {
    let request = ::http::Request::get(path).header("content-type", "application/grpc");
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let answer = channel.call(request.body(Body::empty()).unwrap()).await.unwrap();
    answer.headers().get("grpc-status").map(|status| status.to_str().unwrap().to_owned())
}

/// The answer to a unary gRPC call is collected as a whole, and those of some HTTP routes never end.
#[tokio::test]
async fn http_routes_are_not_served_as_grpc() {
    const PATHS: [&str; 6] = [
        "/console/events?view=locks",
        "/v1/election/observe?name=a",
        "/v1/snapshot",
        "/metrics",
        "/",
        "/no.such.Service/Method",
    ];
    let plain = TestNode::start(&[]).await;
    create_locks(&plain.node.address).await;
    let channel = open(&plain.node.address).channel().await.unwrap();
    let before = plain.memory_mib();
    let paths = PATHS.iter().cycle().take(STREAMS as usize);
    let calls = join_all(paths.map(|path| grpc_status_of(channel.clone(), path)));
    // Each entry changes the views of the console.
    let writes = async {
        for _ in 0..60 {
            plain.assert_works().await;
            let now = plain.memory_mib();
            assert!(now < before + GROWTH_MAX, "{before} MiB before, {now} MiB now");
        }
    };
    let (statuses, ()) = tokio::join!(tokio::time::timeout(LONG, calls), writes);
    for status in statuses.expect("all are answered") {
        assert_eq!(status.as_deref(), Some("12"), "unimplemented");
    }
}

/// A HEAD is as much work as its GET, and waits like it for the client to read earlier answers.
#[tokio::test]
async fn head_waits_as_its_get_does() {
    const LISTINGS: u32 = 50;
    const QUIET: Duration = Duration::from_secs(2);
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    create_locks(address).await;
    let mut stream = connect(address, 0).await;
    request_listings(&mut stream, address, LISTINGS).await;
    let heads: BTreeSet<u32> = [2 * LISTINGS + 1, 2 * LISTINGS + 3, 2 * LISTINGS + 5].into();
    for (id, path) in heads.iter().zip(["/v1/locks?limit=1000", "/v1/lock?name=a", "/metrics"]) {
        stream.write_all(&read_request(*id, "HEAD", &open(address), path)).await.unwrap();
    }
    let mut answered = BTreeSet::new();
    while let Ok(received) = tokio::time::timeout(QUIET, receive(&mut stream)).await {
        let received = received.unwrap();
        if received.kind == HEADERS {
            answered.insert(received.stream);
        }
    }
    assert!(answered.len() < LISTINGS as usize, "the budget of the connection is not full");
    assert!(answered.is_disjoint(&heads), "answered above the budget of the connection: {answered:?}");
    let mut setting = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
    setting.extend((1_u32 << 30).to_be_bytes());
    let window = frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
    stream.write_all(&[frame(SETTINGS, 0, 0, &setting), window].concat()).await.unwrap();
    while !answered.is_superset(&heads) {
        let received = tokio::time::timeout(LONG, receive(&mut stream)).await.expect("an answer").unwrap();
        if received.kind == HEADERS {
            answered.insert(received.stream);
        }
    }
}

/// The budget delays answers, and loses none.
#[tokio::test]
async fn reading_client_gets_all_answers() {
    const REQUESTS: u32 = 50;
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    create_locks(address).await;
    let whole = http::get(address, "/v1/locks?limit=1000").await.unwrap().ok().to_string().len();
    let mut stream = connect(address, 1 << 30).await;
    stream.write_all(&frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes())).await.unwrap();
    request_listings(&mut stream, address, REQUESTS).await;
    let (mut ended, mut bytes) = (0, 0);
    while ended < REQUESTS {
        let received = receive(&mut stream).await.unwrap();
        if received.kind == DATA {
            bytes += received.payload.len();
            ended += u32::from(received.flags & END_STREAM != 0);
        }
    }
    assert!(bytes > whole * REQUESTS as usize * 9 / 10, "{bytes} bytes of {REQUESTS} times {whole}");
}

/// A client that answers pings is alive, but one that leaves its answers unread is closed all the same.
#[tokio::test]
async fn client_that_does_not_read_answers_is_closed() {
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    create_locks(address).await;
    let began = Instant::now();
    let over_http2 = async {
        let mut stream = connect(address, 0).await;
        request_listings(&mut stream, address, 10).await;
        assert_eq!(leave_unread(&mut stream).await, 0, "there is no window");
        began.elapsed()
    };
    // Each fits into the buffers of the HTTP/2 library.
    let small_answers = async {
        let mut stream = connect(address, 1).await;
        send_requests(&mut stream, &open(address), std::iter::repeat_n("/console/app.js", STREAMS as usize))
            .await;
        let bytes = leave_unread(&mut stream).await;
        assert!(bytes <= STREAMS as usize, "{bytes} bytes in windows of one byte");
        began.elapsed()
    };
    let over_frames = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let list = Kind::ListLocks(v1::ListLocksRequest { limit: 1_000, ..Default::default() });
        let operations = (1..=100).map(|id| v1::Operation { id, kind: Some(list.clone()) }).collect();
        let mut bytes = BytesMut::from(&GREETING[..]);
        lockkeeper_net::frame::encode(&v1::ClientFrame { operations }, &mut bytes);
        stream.write_all(&bytes).await.unwrap();
        // Sends fail once the node has closed the connection.
        let keep_alive = v1::KeepAliveAll { sessions: vec!["0".repeat(32)] };
        let operations = vec![v1::Operation { id: 101, kind: Some(Kind::KeepAlive(keep_alive)) }];
        bytes.clear();
        lockkeeper_net::frame::encode(&v1::ClientFrame { operations }, &mut bytes);
        while stream.write_all(&bytes).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        began.elapsed()
    };
    let all = async { tokio::join!(over_http2, small_answers, over_frames) };
    let closed = tokio::time::timeout(STALLED_FOR + LONG, all).await;
    let (http2, small, frames) = closed.expect("all connections are closed");
    println!("closed after {http2:?} and {small:?} over HTTP/2 and {frames:?} over frames");
    for took in [http2, small, frames] {
        assert!(took + Duration::from_secs(1) > STALLED_FOR, "closed for another reason after {took:?}");
    }
    plain.assert_works().await;
}
