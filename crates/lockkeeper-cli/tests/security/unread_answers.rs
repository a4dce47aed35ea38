//! Small frames that request large answers, from clients that do not read them.

use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_api::v1;
use lockkeeper_api::v1::operation::Kind;
use lockkeeper_net::frame::{self, GREETING};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::connections::TestNode;
use crate::harness::{LONG, http};

/// Maximum memory growth for one client that does not read, in MiB.
const GROWTH_MAX: u64 = 64;
const FRAME_BYTES_MAX: usize = 8 << 20;

async fn send_greedy_frame(address: &str, kind: &Kind, count: u64) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let operations = (1..=count).map(|id| v1::Operation { id, kind: Some(kind.clone()) }).collect();
    let mut bytes = BytesMut::from(&GREETING[..]);
    frame::encode(&v1::ClientFrame { operations }, &mut bytes);
    println!("{count} operations in {} bytes", bytes.len());
    stream.write_all(&bytes).await.unwrap();
    stream
}

/// Reads a number of answers and returns their bytes.
async fn read_answers(mut stream: TcpStream, count: u64) -> usize {
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).await.unwrap();
    let (mut buffer, mut next, mut bytes) = (BytesMut::new(), 1, 0);
    while next <= count {
        match frame::decode::<v1::ServerFrame>(&mut buffer, FRAME_BYTES_MAX).unwrap() {
            Some(frame) => {
                for answer in frame.answers {
                    assert_eq!(answer.id, next, "in order");
                    assert!(!matches!(answer.kind, Some(v1::answer::Kind::Error(_))), "{answer:?}");
                    next += 1;
                }
            }
            None => {
                let read = tokio::time::timeout(LONG, stream.read_buf(&mut buffer)).await;
                let read = read.unwrap_or_else(|_| panic!("no answer {next} of {count}")).unwrap();
                assert!(read > 0, "the node has hung up before answer {next}");
                bytes += read;
            }
        }
    }
    bytes
}

/// Watches the memory of the node for a while, with requests of another client.
async fn watch(plain: &TestNode, before: u64) -> u64 {
    let (mut peak, mut slowest) = (0, Duration::ZERO);
    for _ in 0..150 {
        let began = std::time::Instant::now();
        plain.assert_works().await;
        slowest = slowest.max(began.elapsed());
        peak = peak.max(plain.memory_mib());
        assert!(peak < before + GROWTH_MAX, "{before} MiB before, {peak} MiB now");
    }
    println!(
        "{before} MiB before, {peak} MiB with clients that do not read; slowest request of others {slowest:?}"
    );
    assert!(slowest < Duration::from_secs(2), "others waited for {slowest:?}");
    peak
}

#[tokio::test]
async fn unread_large_values_do_not_fill_the_memory() {
    const READS: u64 = 16_384;
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    let value = json!({"key": "large", "value": "x".repeat(60 * 1024)});
    http::post(address, "/v1/value/put", &value).await.unwrap().ok();
    let before = plain.memory_mib();
    let read = Kind::GetValue(v1::GetValueRequest { key: "large".into() });
    let mut greedy = Vec::new();
    for _ in 0..4 {
        greedy.push(send_greedy_frame(address, &read, READS).await);
    }
    watch(&plain, before).await;
    let bytes = read_answers(greedy.remove(0), READS).await;
    assert!(bytes as u64 > READS * 60 * 1024, "only {bytes} bytes arrived");
    assert!(plain.memory_mib() < before + GROWTH_MAX);
}

#[tokio::test]
async fn unread_lists_do_not_fill_the_memory() {
    const LISTS: u64 = 16_000;
    const READ: u64 = 50;
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
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
    let before = plain.memory_mib();
    let list = Kind::ListLocks(v1::ListLocksRequest { limit: 1_000, ..Default::default() });
    let all = send_greedy_frame(address, &list, LISTS).await;
    let some = send_greedy_frame(address, &list, READ).await;
    watch(&plain, before).await;
    let bytes = read_answers(some, READ).await;
    assert!(bytes as u64 > READ * 100_000, "only {bytes} bytes arrived");
    drop(all);
    plain.assert_works().await;
}
