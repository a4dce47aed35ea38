//! Hand-written HTTP/2 clients that request large answers without a flow-control window, which no client library does.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use lockkeeper_api::v1;
use lockkeeper_api::v1::operation::Kind;
use lockkeeper_net::frame::GREETING;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::connections::TestNode;
use crate::fixture::Caller;
use crate::harness::{LONG, http};

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

/// Sends requests for all paths at once.
pub async fn send_requests<'a>(
    stream: &mut TcpStream,
    caller: &Caller,
    paths: impl IntoIterator<Item = &'a str>,
) {
    let requests = paths.into_iter().zip((1..).step_by(2));
    let requests = requests
        .flat_map(|(path, id)| frame(HEADERS, END_STREAM_AND_HEADERS, id, &head("GET", caller, path)));
    // A closed connection has sent enough.
    let _ = stream.write_all(&requests.collect::<Vec<u8>>()).await;
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

/// Requests many listings at once.
pub async fn request_listings(stream: &mut TcpStream, address: &str, streams: u32) {
    let caller = Caller { address: address.to_owned(), ca: None, own: None, token: None };
    send_requests(stream, &caller, std::iter::repeat_n("/v1/locks?limit=1000", streams as usize)).await;
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
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.unwrap();
        if head[3] == DATA {
            bytes += length;
            ended += u32::from(head[4] & 1 == 1);
        }
    }
    assert!(bytes > whole * REQUESTS as usize * 9 / 10, "{bytes} bytes of {REQUESTS} times {whole}");
}

/// A client that answers pings is alive, but one that leaves its answers unread is closed all the same.
#[tokio::test]
async fn client_that_does_not_read_answers_is_closed() {
    const PING: u8 = 6;
    const ACK: u8 = 1;
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    create_locks(address).await;
    let began = Instant::now();
    let over_http2 = async {
        let mut stream = connect(address, 0).await;
        request_listings(&mut stream, address, 10).await;
        let mut head = [0; 9];
        // Frames without a window: settings, pings, heads of answers.
        while stream.read_exact(&mut head).await.is_ok() {
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            if stream.read_exact(&mut payload).await.is_err() {
                break;
            }
            assert_ne!((head[3], payload.is_empty()), (DATA, false), "there is no window");
            if (head[3], head[4]) == (PING, 0)
                && stream.write_all(&frame(PING, ACK, 0, &payload)).await.is_err()
            {
                break;
            }
        }
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
    let both = async { tokio::join!(over_http2, over_frames) };
    let closed = tokio::time::timeout(STALLED_FOR + LONG, both).await;
    let (http2, frames) = closed.expect("both connections are closed");
    println!("closed after {http2:?} over HTTP/2 and {frames:?} over frames");
    for took in [http2, frames] {
        assert!(took + Duration::from_secs(1) > STALLED_FOR, "closed for another reason after {took:?}");
    }
    plain.assert_works().await;
}
