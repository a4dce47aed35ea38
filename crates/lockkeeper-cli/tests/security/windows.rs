//! HTTP/2 clients that ask for a lot and have no room for any of it, written by hand: no client library does that.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::crowd::Plain;
use crate::harness::http;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: u8 = 4;
const HEADERS: u8 = 1;
const DATA: u8 = 0;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM_AND_HEADERS: u8 = 0x5;
const INITIAL_WINDOW_SIZE: u16 = 4;
/// What all of them together may cost, in MiB.
const GROWTH_MAX: u64 = 100;
const STREAMS: u32 = 200;
const CONNECTIONS: usize = 5;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header as HPACK spells it out.
fn header(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0, name.len() as u8];
    bytes.extend(name.as_bytes());
    bytes.push(value.len() as u8);
    bytes.extend(value.as_bytes());
    bytes
}

fn get(stream: u32, host: &str, path: &str) -> Vec<u8> {
    let headers = [(":method", "GET"), (":scheme", "http"), (":authority", host), (":path", path)];
    let block: Vec<u8> = headers.iter().flat_map(|(name, value)| header(name, value)).collect();
    frame(HEADERS, END_STREAM_AND_HEADERS, stream, &block)
}

/// A connection whose answers have a window of so many bytes each.
pub async fn connect(address: &str, window: u32) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut setting = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
    setting.extend(window.to_be_bytes());
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &setting));
    stream.write_all(&bytes).await.unwrap();
    stream
}

/// Asks for many listings at once.
pub async fn ask_for_listings(stream: &mut TcpStream, address: &str, streams: u32) {
    let asked: Vec<u8> =
        (0..streams).flat_map(|number| get(2 * number + 1, address, "/v1/locks?limit=1000")).collect();
    // Whoever is cut off has asked for enough.
    let _ = stream.write_all(&asked).await;
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
