//! Whoever sends a byte now and then is cut off like whoever sends nothing: the time is for the whole of it.

use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use lockkeeper_net::frame::GREETING;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::crowd::Plain;
use crate::harness::LONG;
use crate::stage::Stage;

/// What the node allows for each of these, and what a busy machine may add to it.
const LIMIT: Duration = Duration::from_secs(10);
const LATE: Duration = Duration::from_secs(5);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Kinds of HTTP/2 frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

/// What is sent: some of it at once, the rest in drops.
struct Drip {
    what: &'static str,
    first: Vec<u8>,
    drops: Vec<Vec<u8>>,
    every: Duration,
}

impl Drip {
    fn new(what: &'static str, first: &[u8], rest: &[u8]) -> Drip {
        let drops = rest.iter().map(|byte| vec![*byte]).collect();
        Drip { what, first: first.to_vec(), drops, every: Duration::from_secs(1) }
    }

    /// Sends it until the node has had enough: it hangs up, or it says the words for which `is_end` looks.
    async fn run(self, stream: impl AsyncReadExt + AsyncWriteExt + Unpin, is_end: impl Fn(&[u8]) -> bool) {
        let Drip { what, first, drops, every } = self;
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
                // What cannot be sent any more was cut off.
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

/// Whether there is an answer on the first stream.
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

/// A gRPC call whose message of 4 KiB comes in frames of one byte.
fn grpc_call() -> Drip {
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
            // Not compressed: 0, and then each text behind its length.
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
    Drip { what: "a gRPC message", first, drops, every: Duration::from_secs(1) }
}

#[tokio::test]
async fn a_byte_a_second_keeps_no_connection_open() {
    let plain = Plain::start(&[]).await;
    let secure = Stage::start().await;
    let mut length = BytesMut::from(&GREETING[..]);
    length.put_u32(1_000);
    let head = b"POST /v1/lock/acquire HTTP/1.1\r\nhost: localhost\r\nx: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        .as_slice();
    let body =
        b"POST /v1/lock/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n".as_slice();
    let chunks =
        b"POST /v1/lock/acquire HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".as_slice();
    let mut greeting = Drip::new("a greeting", &[], GREETING);
    // It is short: at one byte a second it would be complete in time.
    greeting.every = Duration::from_secs(2);
    let open = [
        greeting,
        Drip::new("a frame", &length, &[0x0a]),
        Drip::new("a head", &[], head),
        Drip::new("a body", body, b"{\"session\": \"aaaaaaaaaaaaaaaaaaaa"),
        Drip::new("a body in chunks", chunks, b"1\r\n \r\n"),
        Drip::new("the preface of HTTP/2", &[], PREFACE),
    ];
    let record = [&[0x16, 3, 1, 0x3f, 0xff][..], &[1; 60]].concat();
    let closed = [Drip::new("a record of TLS", &[], &record), Drip::new("a handshake", &record[..20], &[1])];
    let inside = [
        Drip::new("a head under TLS", &[], head),
        Drip::new("the preface of HTTP/2 under TLS", &[], PREFACE),
        Drip::new("a frame under TLS", &length, &[0x0a]),
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
        let stream = secure.nobody().credentials().connect(&secure.node.address, None, |_| Ok(())).await;
        all.push(futures_util::FutureExt::boxed_local(drip.run(stream.unwrap(), |_| false)));
    }
    let stream = connect(&plain.node.address).await;
    all.push(futures_util::FutureExt::boxed_local(grpc_call().run(stream, is_answered)));
    futures_util::StreamExt::collect::<Vec<()>>(all).await;
    plain.works().await;
    secure.root().read("/v1/status").await.ok();
}
