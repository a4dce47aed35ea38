//! Limits on unauthenticated callers.

use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use futures_util::future::join_all;
use lockkeeper_api::v1;
use lockkeeper_api::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_net::frame::{GREETING, MEMBERS_GREETING};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use crate::connections::{TestNode, raise_open_file_limit};
use crate::fixture::{Caller, ROOT_TOKEN};
use crate::harness::{LONG, http, write_secret};
use crate::http2;

/// Connections of each kind. As many with bodies for one gRPC path once held 270 MB.
const CONNECTIONS: usize = 60;
/// Maximum memory growth for all of them, in MiB.
const GROWTH_MAX: u64 = 60;
/// Bytes that each connection tries to send.
const BYTES: usize = 5 << 20;

/// Starts a node that requires authentication, without TLS.
pub async fn secured(folder: &std::path::Path) -> TestNode {
    let token = folder.join("root.token");
    write_secret(&token, ROOT_TOKEN);
    TestNode::start_secured(&["--root-token-file", token.to_str().unwrap()]).await
}

/// The beginning of a gRPC call with a large message.
fn grpc_call(caller: &Caller, path: &str) -> Vec<u8> {
    let message: Vec<u8> = [&[0, 0, 0x50, 0, 0][..], &vec![0x0a; BYTES]].concat();
    [http2::preface(1 << 16), http2::grpc_request(1, caller, path, &message, false)].concat()
}

/// First bytes of an unauthenticated caller, on each protocol.
fn openings(caller: &Caller) -> Vec<(&'static str, Vec<u8>)> {
    let body = |path: &str, kind: &str| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            BYTES + 1
        );
        [head.as_bytes(), &vec![b' '; BYTES]].concat()
    };
    let frame = |greeting: &[u8], bytes: u32| {
        let mut frame = BytesMut::from(greeting);
        frame.put_u32(bytes);
        frame.put_bytes(0x0a, BYTES);
        frame.to_vec()
    };
    vec![
        ("JSON", body("/v1/value/put", "application/json")),
        ("gRPC as text", body("/grpc.health.v1.Health/Check", "text/plain")),
        ("health", grpc_call(caller, "/grpc.health.v1.Health/Check")),
        ("reflection", grpc_call(caller, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")),
        ("a call", grpc_call(caller, "/lockkeeper.v1.Lockkeeper/PutValue")),
        ("a stream", grpc_call(caller, "/lockkeeper.v1.Lockkeeper/Stream")),
        ("hello", grpc_call(caller, "/lockkeeper.peer.v1.Peer/Hello")),
        ("a snapshot", grpc_call(caller, "/lockkeeper.peer.v1.Peer/SnapshotSend")),
        ("a frame", frame(GREETING, 64 << 10)),
        ("a large frame", frame(GREETING, 4 << 20)),
        ("a member's frame", frame(MEMBERS_GREETING, 60 << 20)),
    ]
}

async fn send_all(plain: &TestNode, bytes: &[u8]) -> Vec<TcpStream> {
    send_from_each(plain, bytes, CONNECTIONS).await
}

/// Sends the same bytes on each of many connections.
async fn send_from_each(plain: &TestNode, bytes: &[u8], connections: usize) -> Vec<TcpStream> {
    join_all((0..connections).map(|_| async move {
        let mut stream = TcpStream::connect(&plain.node.address).await.unwrap();
        // Sends as much as the node reads.
        drop(tokio::time::timeout(Duration::from_millis(500), stream.write_all(bytes)).await);
        stream
    }))
    .await
}

async fn check_memory(plain: &TestNode, is_checked: impl Fn(&str) -> bool) {
    let caller = Caller { address: plain.node.address.clone(), ca: None, own: None, token: None };
    for (what, bytes) in openings(&caller).into_iter().filter(|(what, _)| is_checked(what)) {
        let before = plain.memory_mib();
        let open = send_all(plain, &bytes).await;
        assert_eq!(http::get(&plain.node.address, "/livez").await.unwrap().status, 200, "{what}");
        let after = plain.memory_mib();
        println!("{what}: {before} MiB before, {after} MiB with {} connections", open.len());
        assert!(after < before + GROWTH_MAX, "{what}: {before} MiB before, {after} MiB");
    }
}

#[tokio::test]
async fn unauthenticated_messages_do_not_fill_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    check_memory(&secured(folder.path()).await, |_| true).await;
}

/// Without member certificates, any caller can claim to be a member.
#[tokio::test]
async fn messages_of_forged_members_do_not_fill_the_memory() {
    let plain = TestNode::start(&[]).await;
    check_memory(&plain, |what| ["hello", "a snapshot", "a member's frame"].contains(&what)).await;
}

/// Without authentication callers may send more, but incomplete messages count against a budget.
#[tokio::test]
async fn incomplete_messages_are_counted() {
    let plain = TestNode::start(&[]).await;
    let caller = Caller { address: plain.node.address.clone(), ca: None, own: None, token: None };
    let before = plain.memory_mib();
    let open = join_all((0..CONNECTIONS).map(|_| {
        let caller = &caller;
        async move {
            let mut stream = http2::connect(&caller.address, 1 << 16).await;
            http2::send_partial_messages(&mut stream, caller, 3, 3 << 20).await;
            stream
        }
    }))
    .await;
    let peak = plain.memory_mib();
    println!("{before} MiB before, {peak} MiB with 3 x 3 MiB on each of {CONNECTIONS} connections");
    // The budget of an identity, and the buffers of the HTTP/2 library.
    assert!(peak < before + 250, "{before} MiB before, {peak} MiB now");
    drop(open);
    plain.assert_works().await;
}

/// An empty operation has two bytes: a frame of 4 MiB would have two million of them.
#[tokio::test]
async fn frame_that_expands_when_decoded_is_refused() {
    let plain = TestNode::start(&[]).await;
    let before = plain.memory_mib();
    let mut frame = BytesMut::from(&GREETING[..]);
    frame.put_u32(4 << 20);
    frame.put_slice(&[0x0a, 0].repeat(2 << 20));
    for _ in 0..4 {
        let mut stream = TcpStream::connect(&plain.node.address).await.unwrap();
        stream.write_all(&frame).await.unwrap();
        let mut rest = Vec::new();
        let end = tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await;
        assert!(end.is_ok(), "it is still open");
    }
    let after = plain.memory_peak_mib();
    assert!(after < before + 60, "{before} MiB before, up to {after} MiB");
    plain.assert_works().await;
}

/// An empty name has two bytes on the wire, and many more in memory.
#[tokio::test]
async fn unary_message_that_expands_when_decoded_is_refused() {
    const NAMES: usize = (4 << 20) / 2 - 100;
    let plain = TestNode::start(&[]).await;
    let caller = Caller { address: plain.node.address.clone(), ca: None, own: None, token: None };
    let mut node = LockkeeperClient::new(caller.channel().await.unwrap());
    let before = plain.memory_peak_mib();
    for _ in 0..4 {
        let locks = vec![String::new(); NAMES];
        let refused =
            node.acquire_all(v1::AcquireAllRequest { locks, ..Default::default() }).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert!(refused.message().contains("too many fields"), "{refused:?}");
    }
    let after = plain.memory_peak_mib();
    println!("{before} MiB before, {after} MiB after {NAMES} names in a message");
    // The message itself, and what it leaves in the allocator.
    assert!(after < before + 45, "{before} MiB before, up to {after} MiB");
    plain.assert_works().await;
}

/// A caller is authenticated by the head of its request, so anybody can send incomplete heads.
#[tokio::test]
async fn incomplete_heads_do_not_fill_the_memory() {
    const HEADS: usize = 3_000;
    const HEAD_BYTES: usize = 60 << 10;
    /// Maximum memory growth for all of them, in MiB: 16 KiB of each, and the connections themselves.
    const HEADS_GROWTH_MAX: u64 = 150;
    if !raise_open_file_limit(HEADS as u64) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let plain = secured(folder.path()).await;
    let head = [&b"GET /v1/locks HTTP/1.1\r\nhost: localhost\r\nx: "[..], &[b'x'; HEAD_BYTES]].concat();
    let headers = |length: usize| {
        let whole = http2::frame(http2::HEADERS, 0x4, 1, &vec![0; length]);
        [http2::preface(1 << 16), whole[..whole.len() - 10].to_vec()].concat()
    };
    for (what, bytes) in [
        ("HTTP/1", &head),
        ("HTTP/1 up to the limit", &head[..15 << 10].to_vec()),
        ("HTTP/2", &headers(HEAD_BYTES)),
        ("HTTP/2 up to the limit", &headers(15 << 10)),
    ] {
        let before = plain.memory_mib();
        let open = send_from_each(&plain, bytes, HEADS).await;
        assert_eq!(http::get(&plain.node.address, "/livez").await.unwrap().status, 200, "{what}");
        let after = plain.memory_mib();
        println!("{what}: {before} MiB before, {after} MiB with {} connections", open.len());
        assert!(after < before + HEADS_GROWTH_MAX, "{what}: {before} MiB before, {after} MiB");
    }
}

/// The largest head that is accepted has room for the headers of proxies.
#[tokio::test]
async fn large_heads_are_served() {
    let plain = TestNode::start(&[]).await;
    let answer = async |header_bytes: usize| {
        let head = format!(
            "GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncookie: {}\r\n\r\n",
            "c".repeat(header_bytes)
        );
        let mut stream = TcpStream::connect(&plain.node.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        let read = tokio::time::timeout(LONG, stream.read_exact(&mut status)).await;
        // The rest of a refused head may reset the connection before its answer is read.
        read.expect("an answer or an end").ok().map(|_| String::from_utf8_lossy(&status[9..]).into_owned())
    };
    assert_eq!(answer(15 << 10).await.as_deref(), Some("200"));
    assert_ne!(answer(17 << 10).await.as_deref(), Some("200"));
}

/// Opens an HTTP/2 connection with one request.
async fn open_with_request(caller: &Caller, path: &str) -> TcpStream {
    let mut stream = http2::connect(&caller.address, 1 << 16).await;
    http2::send_requests(&mut stream, caller, [path]).await;
    stream
}

/// Requests that need no identity do not extend the time of an unauthenticated connection.
#[tokio::test]
async fn unauthenticated_connection_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let plain = secured(folder.path()).await;
    let stranger = Caller { address: plain.node.address.clone(), ca: None, own: None, token: None };
    let root = stranger.clone().token(ROOT_TOKEN);
    let began = Instant::now();
    let mut known = open_with_request(&root, "/v1/status").await;
    join_all(["/livez", "/v1/status", "/"].map(|path| {
        let stranger = &stranger;
        async move {
            let mut rest = Vec::new();
            let ended =
                tokio::time::timeout(LONG, open_with_request(stranger, path).await.read_to_end(&mut rest))
                    .await;
            assert!(ended.is_ok(), "{path}: still open");
        }
    }))
    .await;
    let took = began.elapsed();
    assert!(took > Duration::from_secs(9), "after {took:?}, for another reason");
    // The authenticated connection was just as idle, and is still served.
    http2::send_another_request(&mut known, &root, "/v1/status").await;
    let mut count = 0;
    while count < 2 {
        let read = tokio::time::timeout(LONG, http2::receive(&mut known)).await;
        let received = read.expect("an answer").expect("a connection that is still open");
        count += usize::from(received.kind == http2::HEADERS);
    }
}
