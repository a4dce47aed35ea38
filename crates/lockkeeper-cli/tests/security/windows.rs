//! HTTP/2 clients that ask for a lot and have no room for any of it, written by hand: no client library does that.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::crowd::Plain;
use crate::harness::http;
use crate::stage::Caller;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: u8 = 4;
pub const HEADERS: u8 = 1;
const DATA: u8 = 0;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const END_STREAM_AND_HEADERS: u8 = 0x5;
/// What any peer takes in one frame.
const FRAME_BYTES: usize = 16 << 10;
const INITIAL_WINDOW_SIZE: u16 = 4;
/// What all of them together may cost, in MiB.
const GROWTH_MAX: u64 = 100;
const STREAMS: u32 = 200;
const CONNECTIONS: usize = 5;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header as HPACK spells it out.
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

/// Asks for all of these at once.
pub async fn ask<'a>(stream: &mut TcpStream, caller: &Caller, paths: impl IntoIterator<Item = &'a str>) {
    let asked = paths.into_iter().zip((1..).step_by(2));
    let asked =
        asked.flat_map(|(path, id)| frame(HEADERS, END_STREAM_AND_HEADERS, id, &head("GET", caller, path)));
    // Whoever is cut off has asked for enough.
    let _ = stream.write_all(&asked.collect::<Vec<u8>>()).await;
}

/// Begins client streams over gRPC, each with so many bytes of a message of 4 MiB.
pub async fn begin_messages(stream: &mut TcpStream, caller: &Caller, streams: u32, bytes: usize) {
    let mut sent = Vec::new();
    let message: Vec<u8> = [&[0, 0, 0x40, 0, 0][..], &vec![0x0a; bytes]].concat();
    for id in (1..).step_by(2).take(streams as usize) {
        sent.extend(grpc_request(id, caller, "/lockkeeper.v1.Lockkeeper/Stream", &message, false));
    }
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(&sent)).await;
}

/// The beginning of a connection whose answers have a window of so many bytes each.
pub fn preface(window: u32) -> Vec<u8> {
    let mut setting = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
    setting.extend(window.to_be_bytes());
    [PREFACE, &frame(SETTINGS, 0, 0, &setting)].concat()
}

/// A connection whose answers have a window of so many bytes each.
pub async fn connect(address: &str, window: u32) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&preface(window)).await.unwrap();
    stream
}

/// A gRPC call with these bytes of its message, which may not be all of it.
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

/// A second request on a connection on which one was sent.
pub async fn ask_again(stream: &mut TcpStream, caller: &Caller, path: &str) {
    let request = frame(HEADERS, END_STREAM_AND_HEADERS, 3, &head("GET", caller, path));
    stream.write_all(&request).await.unwrap();
}

/// Asks for many listings at once.
pub async fn ask_for_listings(stream: &mut TcpStream, address: &str, streams: u32) {
    let caller = Caller { address: address.to_owned(), ca: None, own: None, token: None };
    ask(stream, &caller, std::iter::repeat_n("/v1/locks?limit=1000", streams as usize)).await;
}

/// Locks whose listing is about half a megabyte.
pub async fn fill(address: &str) {
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
async fn answers_that_have_no_window_do_not_fill_the_memory() {
    let plain = Plain::start(&[]).await;
    let address = &plain.node.address;
    fill(address).await;
    plain.works().await;
    let before = plain.memory_mib();
    let mut greedy = Vec::new();
    for window in [0, 0, 1, 100, 20_000] {
        let mut stream = connect(address, window).await;
        ask_for_listings(&mut stream, address, STREAMS).await;
        greedy.push(stream);
    }
    assert_eq!(greedy.len(), CONNECTIONS);
    let mut most = 0;
    for _ in 0..60 {
        plain.works().await;
        most = most.max(plain.memory_mib());
        assert!(most < before + GROWTH_MAX, "{before} MiB before, {most} MiB now");
    }
    println!(
        "{before} MiB before, {most} MiB with {CONNECTIONS} connections that ask for {STREAMS} listings each"
    );
}

/// The budget delays answers, and loses none.
#[tokio::test]
async fn a_client_that_reads_gets_all_its_answers() {
    const ASKED: u32 = 50;
    let plain = Plain::start(&[]).await;
    let address = &plain.node.address;
    fill(address).await;
    let whole = http::get(address, "/v1/locks?limit=1000").await.unwrap().ok().to_string().len();
    let mut stream = connect(address, 1 << 30).await;
    stream.write_all(&frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes())).await.unwrap();
    ask_for_listings(&mut stream, address, ASKED).await;
    let (mut ended, mut bytes) = (0, 0);
    while ended < ASKED {
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
    assert!(bytes > whole * ASKED as usize * 9 / 10, "{bytes} bytes of {ASKED} times {whole}");
}
