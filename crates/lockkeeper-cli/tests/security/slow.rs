//! Slow senders are closed like silent ones: the time limit covers the whole message.

use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use lockkeeper_api::v1;
use lockkeeper_net::frame::GREETING;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::connections::TestNode;
use crate::fixture::{Caller, ROOT_TOKEN, SecureNode};
use crate::harness::LONG;
use crate::{before_auth, http2};

/// The time limit of the node, and the tolerance for a busy machine.
const LIMIT: Duration = Duration::from_secs(10);
const LATE: Duration = Duration::from_secs(15);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Kinds of HTTP/2 frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

/// A slow sender: some bytes at once, the rest in small parts.
struct SlowSender {
    what: &'static str,
    first: Vec<u8>,
    drops: Vec<Vec<u8>>,
    every: Duration,
}

impl SlowSender {
    fn new(what: &'static str, first: &[u8], rest: &[u8]) -> SlowSender {
        let drops = rest.iter().map(|byte| vec![*byte]).collect();
        SlowSender { what, first: first.to_vec(), drops, every: Duration::from_secs(1) }
    }

    /// Sends until the node closes the connection, or until `is_end` accepts its answer.
    async fn run(self, stream: impl AsyncReadExt + AsyncWriteExt + Unpin, is_end: impl Fn(&[u8]) -> bool) {
        let SlowSender { what, first, drops, every } = self;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let began = Instant::now();
        let sends = async {
            writer.write_all(&first).await?;
            for drop in drops.iter().cycle() {
                tokio::time::sleep(every).await;
                writer.write_all(drop).await?;
                writer.flush().await?;
            }
            std::io::Result::Ok(())
        };
        let reads = async {
            let mut said = Vec::new();
            while !is_end(&said) {
                match reader.read_buf(&mut said).await {
                    Ok(1..) => {}
                    _ => break,
                }
            }
        };
        let ends = async {
            tokio::select! {
                () = reads => {}
                // A failed send means that the connection was closed.
                _ = sends => {}
            }
        };
        let ended = tokio::time::timeout(LONG, ends).await;
        let took = began.elapsed();
        println!("{what}: after {took:?}");
        assert!(ended.is_ok() && took < LIMIT + LATE, "{what}: open for {took:?}");
        assert!(took + Duration::from_secs(1) > LIMIT, "{what}: ended after {took:?} for another reason");
    }
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    bytes.put_uint(payload.len() as u64, 3);
    bytes.put_slice(&[kind, flags]);
    bytes.put_u32(stream);
    bytes.put_slice(payload);
    bytes.to_vec()
}

/// Whether the first stream has an answer.
fn is_answered(mut said: &[u8]) -> bool {
    while let [a, b, c, kind, _, stream @ ..] = said
        && stream.len() >= 4
    {
        if *kind == HEADERS {
            return true;
        }
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        said = said.get(9 + length..).unwrap_or_default();
    }
    false
}

/// A gRPC call with a message of 4 KiB in one-byte frames.
fn grpc_call() -> SlowSender {
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/lockkeeper.v1.Lockkeeper/OpenSession"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in headers {
        for text in [name, value] {
            // HPACK literal without indexing: 0, then each text with its length.
            if text == name {
                block.push(0);
            }
            block.push(text.len() as u8);
            block.extend(text.as_bytes());
        }
    }
    let mut first = PREFACE.to_vec();
    first.extend(frame(SETTINGS, 0, 0, &[]));
    first.extend(frame(HEADERS, 4, 1, &block));
    first.extend(frame(DATA, 0, 1, &[0, 0, 0, 0x10, 0]));
    let drops = vec![frame(DATA, 0, 1, &[0x0a])];
    SlowSender { what: "a gRPC message", first, drops, every: Duration::from_secs(1) }
}

#[tokio::test]
async fn slow_senders_are_closed() {
    let plain = TestNode::start(&[]).await;
    let secure = SecureNode::start().await;
    let mut length = BytesMut::from(&GREETING[..]);
    length.put_u32(1_000);
    let head = b"POST /v1/lock/acquire HTTP/1.1\r\nhost: localhost\r\nx: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        .as_slice();
    let body =
        b"POST /v1/lock/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n".as_slice();
    let chunks =
        b"POST /v1/lock/acquire HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".as_slice();
    let mut greeting = SlowSender::new("a greeting", &[], GREETING);
    // The greeting is short: at one byte per second it would be complete in time.
    greeting.every = Duration::from_secs(2);
    let open = [
        greeting,
        SlowSender::new("a frame", &length, &[0x0a]),
        SlowSender::new("a head", &[], head),
        SlowSender::new("a body", body, b"{\"session\": \"aaaaaaaaaaaaaaaaaaaa"),
        SlowSender::new("a body in chunks", chunks, b"1\r\n \r\n"),
        SlowSender::new("the preface of HTTP/2", &[], PREFACE),
    ];
    let record = [&[0x16, 3, 1, 0x3f, 0xff][..], &[1; 60]].concat();
    let closed =
        [SlowSender::new("a TLS record", &[], &record), SlowSender::new("a handshake", &record[..20], &[1])];
    let inside = [
        SlowSender::new("a head under TLS", &[], head),
        SlowSender::new("the preface of HTTP/2 under TLS", &[], PREFACE),
        SlowSender::new("a frame under TLS", &length, &[0x0a]),
    ];
    let connect = async |address: &str| TcpStream::connect(address).await.unwrap();
    let all = futures_util::stream::FuturesUnordered::new();
    for drip in open {
        let stream = connect(&plain.node.address).await;
        all.push(futures_util::FutureExt::boxed_local(drip.run(stream, |_| false)));
    }
    for drip in closed {
        let stream = connect(&secure.node.address).await;
        all.push(futures_util::FutureExt::boxed_local(drip.run(stream, |_| false)));
    }
    for drip in inside {
        let stream = secure.anonymous().credentials().connect(&secure.node.address, None, |_| Ok(())).await;
        all.push(futures_util::FutureExt::boxed_local(drip.run(stream.unwrap(), |_| false)));
    }
    let stream = connect(&plain.node.address).await;
    all.push(futures_util::FutureExt::boxed_local(grpc_call().run(stream, is_answered)));
    futures_util::StreamExt::collect::<Vec<()>>(all).await;
    plain.assert_works().await;
    secure.root().read("/v1/status").await.ok();
}

/// Requests that an unauthenticated caller may repeat, on each protocol, do not extend its time.
#[tokio::test]
async fn active_connections_without_authentication_are_closed() {
    const PING: u8 = 6;
    let folder = tempfile::tempdir().unwrap();
    let plain = before_auth::secured(folder.path()).await;
    let caller = Caller { address: plain.node.address.clone(), ca: None, own: None, token: None };
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes();
    let look = v1::operation::Kind::GetLock(v1::GetLockRequest { lock: "a".into() });
    let operations = vec![v1::Operation { id: 1, kind: Some(look) }];
    let mut operation = BytesMut::new();
    lockkeeper_net::frame::encode(&v1::ClientFrame { operations }, &mut operation);
    let every = Duration::from_secs(1);
    let http2 = http2::preface(1 << 16);
    let watch = http2::grpc_request(1, &caller, "/grpc.health.v1.Health/Watch", &[0; 5], true);
    let gets = (1..).step_by(2).take(LONG.as_secs() as usize);
    let gets = gets.map(|id| http2::frame(HEADERS, 5, id, &http2::head("GET", &caller, "/livez")));
    let senders = [
        SlowSender { what: "health checks", first: vec![], drops: vec![request("/livez")], every },
        SlowSender { what: "refused requests", first: vec![], drops: vec![request("/v1/locks")], every },
        SlowSender {
            what: "refused operations",
            first: GREETING.to_vec(),
            drops: vec![operation.to_vec()],
            every,
        },
        SlowSender {
            what: "a watch of the health",
            first: [http2.clone(), watch].concat(),
            drops: vec![frame(PING, 0, 0, &[0; 8])],
            every,
        },
        SlowSender { what: "health checks over HTTP/2", first: http2, drops: gets.collect(), every },
    ];
    let all = senders.map(|sender| async {
        sender.run(TcpStream::connect(&plain.node.address).await.unwrap(), |_| false).await;
    });
    futures_util::future::join_all(all).await;
    caller.token(ROOT_TOKEN).read("/v1/status").await.ok();
}
