//! A caller without a token beside the adversary: it attacks what a node reads, keeps and answers before authentication.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use lockkeeper_net::frame::{GREETING, MEMBERS_GREETING};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::attacks::UNREAD_FOR;
use super::tally::Tally;
use crate::fixture::Caller;
use crate::{http2, reflection};

/// The protocol, as counted.
pub const STRANGER: &str = "stranger";
/// Paths, and whether a stranger may read them.
pub const PATHS: [(&str, bool); 10] = [
    ("/", true),
    ("/console/app.js", true),
    ("/openapi.json", true),
    ("/livez", true),
    ("/readyz?verbose", true),
    ("/version", true),
    ("/metrics", false),
    ("/v1/locks?limit=1000", false),
    ("/v1/snapshot", false),
    ("/console/events?view=locks", false),
];
/// Requests on one HTTP/2 connection.
const STREAMS: usize = 100;
/// Connections at once, with incomplete messages of each kind.
const UNFINISHED: usize = 100;
/// Connections at once that ask for reflection.
const ASKING: usize = 10;

#[derive(Clone)]
pub struct Stranger {
    caller: Caller,
    tally: Tally,
}

impl Stranger {
    pub fn new(known: &Caller, tally: &Tally) -> Stranger {
        Stranger { caller: Caller { token: None, ..known.clone() }, tally: tally.clone() }
    }

    pub fn attack(&self, tasks: &mut JoinSet<()>) {
        tasks.spawn(self.clone().read());
        tasks.spawn(self.clone().leave_answers_unread());
        tasks.spawn(self.clone().ask_for_reflection());
        tasks.spawn(self.clone().leave_messages_unfinished());
    }

    async fn read(self) {
        loop {
            for (path, _) in PATHS {
                for method in ["GET", "HEAD"] {
                    let called = self.caller.call(method, path, "").await;
                    self.tally.add(STRANGER, path, called.is_ok_and(|(status, _)| status == 200));
                }
            }
        }
    }

    async fn leave_answers_unread(self) {
        loop {
            let mut open = Vec::new();
            for window in [0, 1, 1 << 16] {
                let mut stream = http2::connect(&self.caller.address, window).await;
                let paths = PATHS.iter().map(|(path, _)| *path).cycle().take(STREAMS);
                http2::send_requests(&mut stream, &self.caller, paths).await;
                open.push(stream);
            }
            tokio::time::sleep(UNREAD_FOR).await;
        }
    }

    /// Asks without a window for the answers, and until the node refuses.
    async fn ask_for_reflection(self) {
        loop {
            let mut open = Vec::new();
            for window in [0, 1] {
                for _ in 0..ASKING {
                    let mut stream = http2::connect(&self.caller.address, window).await;
                    reflection::ask(&mut stream, &self.caller).await;
                    open.push(stream);
                }
            }
            tokio::time::sleep(5 * UNREAD_FOR).await;
        }
    }

    /// Sends the beginnings of heads, frames, bodies and messages.
    async fn leave_messages_unfinished(self) {
        let beginnings = self.beginnings();
        loop {
            let mut open = Vec::new();
            for bytes in beginnings.iter().cycle().take(beginnings.len() * UNFINISHED) {
                let Ok(mut stream) = TcpStream::connect(&self.caller.address).await else { continue };
                drop(tokio::time::timeout(UNREAD_FOR, stream.write_all(bytes)).await);
                open.push(stream);
            }
            tokio::time::sleep(5 * UNREAD_FOR).await;
            let mut end = [0; 1];
            for mut stream in open {
                drop(tokio::time::timeout(Duration::from_millis(1), stream.read(&mut end)).await);
            }
        }
    }

    fn beginnings(&self) -> Vec<Vec<u8>> {
        let head = [&b"GET / HTTP/1.1\r\nhost: localhost\r\nx: "[..], &[b'x'; 60 << 10]].concat();
        let body = [
            &b"POST /livez HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999\r\n\r\n"[..],
            &[b' '; 60 << 10],
        ];
        let headers = http2::frame(http2::HEADERS, 0x4, 1, &[0; 16 << 10]);
        let frame = |greeting: &[u8]| {
            let mut frame = BytesMut::from(greeting);
            frame.put_u32(60 << 10);
            frame.put_bytes(0x0a, 50 << 10);
            frame.to_vec()
        };
        // 4,095 bytes are announced.
        let message: Vec<u8> = [&[0, 0, 0, 0x0f, 0xff][..], &[0x0a; 4_000]].concat();
        let check = http2::grpc_request(1, &self.caller, "/grpc.health.v1.Health/Check", &message, false);
        vec![
            head[..15 << 10].to_vec(),
            head,
            body.concat(),
            [http2::preface(1 << 16), headers[..15 << 10].to_vec()].concat(),
            [http2::preface(1 << 16), check].concat(),
            frame(GREETING),
            frame(MEMBERS_GREETING),
        ]
    }
}
