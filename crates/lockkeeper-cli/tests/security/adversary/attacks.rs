//! Attacks of the adversary on frames, HTTP/2 and the console; those on gRPC and HTTP calls have files of their own.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use futures_util::StreamExt;
use futures_util::future::join_all;
use lockkeeper_api::v1;
use lockkeeper_net::frame::{self, GREETING};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::frames::Frames;
use super::holdings::Holdings;
use super::tally::Tally;
use super::{http, operations};
use crate::fixture::Caller;
use crate::{http2, reflection};

/// How long a connection with unread answers lasts.
pub const UNREAD_FOR: Duration = Duration::from_secs(1);
/// How long a stream with answers that are read lasts. Its reads wait for those of the adversary's other connections.
const READ_FOR: Duration = Duration::from_secs(15);
/// How long a console page lasts.
const PAGE_FOR: Duration = Duration::from_secs(5);
/// Pause after a refusal of what an attack needs.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Protocols, as counted.
pub const FRAMES: &str = "frames";
pub const GRPC_STREAM: &str = "gRPC stream";
/// The view of a lock with long queues.
const CROWDED_VIEW: &str = "lock&name=adversary/crowded";
/// Unary calls with large messages, as counted.
pub const LARGE: &str = "large gRPC message";
/// Empty names that fill the largest message.
const EMPTY_NAMES: usize = (4 << 20) / 2 - 100;
/// About as many names as the node decodes.
const DECODED_NAMES: usize = 260_000;
/// Concurrent requests on one HTTP/2 connection.
const STREAMS: u32 = 100;
/// Console pages that one identity may open.
const PAGES: usize = 64;
/// Connections with incomplete large messages.
const UNFINISHED: usize = 200;

/// An attacker with ordinary rights: all locks and values, no administration.
#[derive(Clone)]
pub struct Adversary {
    pub caller: Caller,
    pub session: String,
    pub tally: Tally,
}

impl Adversary {
    /// Attacks all protocols at once, and reads the answers.
    pub fn attack(&self, tasks: &mut JoinSet<()>) {
        tasks.spawn(self.clone().over_frames());
        tasks.spawn(self.clone().over_grpc_stream());
        tasks.spawn(self.clone().over_grpc());
        tasks.spawn(self.clone().over_http());
        tasks.spawn(self.clone().over_other_services());
        tasks.spawn(self.clone().over_member_frames());
        tasks.spawn(self.clone().over_http2(1 << 20));
        tasks.spawn(self.clone().with_large_messages());
        tasks.spawn(self.clone().over_console(true));
    }

    /// Leaves answers unread and messages incomplete, which exhausts the budget of its identity: the reads of the other
    /// one stay expensive.
    pub fn exhaust_budget(&self, tasks: &mut JoinSet<()>) {
        for _ in 0..2 {
            tasks.spawn(self.clone().over_unread_frames());
        }
        tasks.spawn(self.clone().over_http2(0));
        tasks.spawn(self.clone().over_http2(1));
        tasks.spawn(self.clone().over_unread_reflection());
        tasks.spawn(self.clone().over_unread_grpc_streams());
        tasks.spawn(self.clone().over_console(false));
        tasks.spawn(self.clone().with_unfinished_messages());
    }

    pub fn token(&self) -> &str {
        self.caller.token.as_deref().unwrap_or_default()
    }

    pub async fn connect(&self) -> TcpStream {
        loop {
            match TcpStream::connect(&self.caller.address).await {
                Ok(stream) => return stream,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    /// Frames full of operations, which use what the adversary holds.
    async fn over_frames(self) {
        for round in 0.. {
            let holdings = self.holdings().await;
            let (kinds, names) = operations::frame(&self.session, self.token(), &holdings, round);
            let Ok(mut frames) = Frames::connect(&self.caller).await else { continue };
            let call = async {
                let first = frames.send(kinds).await.unwrap_or(u64::MAX);
                while let Ok(answers) = frames.receive().await {
                    self.count(FRAMES, &names, first, answers);
                }
            };
            drop(tokio::time::timeout(READ_FOR, call).await);
        }
    }

    /// The same without reading the answers.
    async fn over_unread_frames(self) {
        for round in 0.. {
            let (kinds, _) = operations::frame(&self.session, self.token(), &Holdings::default(), round);
            let Ok(mut frames) = Frames::connect(&self.caller).await else { continue };
            let unread = async {
                drop(frames.send(kinds).await);
                std::future::pending::<()>().await;
            };
            drop(tokio::time::timeout(UNREAD_FOR, unread).await);
        }
    }

    /// Counts the answers to operations whose ids begin with `first`.
    fn count(&self, protocol: &'static str, names: &[&'static str], first: u64, answers: Vec<v1::Answer>) {
        for answer in answers {
            let is_accepted = !matches!(answer.kind, Some(v1::answer::Kind::Error(_)));
            self.tally.add(protocol, names[(answer.id - first) as usize], is_accepted);
        }
    }

    /// What the next round uses up.
    pub async fn holdings(&self) -> Holdings {
        loop {
            match Holdings::acquire(&self.caller).await {
                Ok(holdings) => return holdings,
                Err(error) => {
                    self.tally.add("preparation", &error.to_string(), false);
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    async fn over_grpc_stream(self) {
        for round in 0.. {
            let Ok(channel) = self.caller.channel().await else { continue };
            let mut node = self.client(channel);
            let holdings = self.holdings().await;
            let (kinds, names) = operations::frame(&self.session, self.token(), &holdings, round);
            let operations =
                kinds.into_iter().zip(1..).map(|(kind, id)| v1::Operation { id, kind: Some(kind) });
            let frame = v1::ClientFrame { operations: operations.collect() };
            let frames = futures_util::stream::iter([frame]).chain(futures_util::stream::pending());
            let Ok(answers) = node.stream(self.request(frames)).await else { continue };
            let mut answers = answers.into_inner();
            let read = async {
                while let Ok(Some(frame)) = answers.message().await {
                    self.count(GRPC_STREAM, &names, 1, frame.answers);
                }
            };
            drop(tokio::time::timeout(READ_FOR, read).await);
        }
    }

    /// The maximum number of requests on a connection, with or without a window for the answers: as GET, as HEAD, and typed as
    /// gRPC.
    async fn over_http2(self, window: u32) {
        for round in 0.. {
            let mut stream = http2::connect(&self.caller.address, window).await;
            let reads = http::reads();
            let ids = (1..).step_by(2).take(STREAMS as usize);
            let requests = reads.iter().cycle().zip(ids).flat_map(|(path, id)| match round % 3 {
                0 => http2::read_request(id, "GET", &self.caller, path),
                1 => http2::read_request(id, "HEAD", &self.caller, path),
                _ => http2::grpc_typed_request(id, &self.caller, path),
            });
            // A closed connection has sent enough.
            drop(stream.write_all(&requests.collect::<Vec<u8>>()).await);
            drop(tokio::time::timeout(UNREAD_FOR, drain(&mut stream, window > 1)).await);
        }
    }

    /// Questions to reflection, whose answers have no window.
    async fn over_unread_reflection(self) {
        loop {
            let mut stream = http2::connect(&self.caller.address, 0).await;
            reflection::ask(&mut stream, &self.caller).await;
            tokio::time::sleep(UNREAD_FOR).await;
        }
    }

    /// Frames with large answers on many gRPC streams, which have no window.
    async fn over_unread_grpc_streams(self) {
        let list =
            v1::operation::Kind::ListLocks(v1::ListLocksRequest { limit: 1_000, ..Default::default() });
        let operations = (1..=4).map(|id| v1::Operation { id, kind: Some(list.clone()) }).collect();
        let lists = http2::grpc_message(&v1::ClientFrame { operations }.encode_to_vec());
        loop {
            let mut stream = http2::connect(&self.caller.address, 0).await;
            let calls = (1..).step_by(2).take(STREAMS as usize).flat_map(|id| {
                http2::grpc_request(id, &self.caller, "/lockkeeper.v1.Lockkeeper/Stream", &lists, false)
            });
            drop(stream.write_all(&calls.collect::<Vec<u8>>()).await);
            tokio::time::sleep(5 * UNREAD_FOR).await;
        }
    }

    /// Unary calls with as many names as a message can have, and as many as are decoded.
    async fn with_large_messages(self) {
        for names in [EMPTY_NAMES, DECODED_NAMES].into_iter().cycle() {
            let Ok(channel) = self.caller.channel().await else { continue };
            let locks = vec![String::new(); names];
            let request =
                v1::AcquireAllRequest { session: self.session.clone(), locks, ..Default::default() };
            let answer = self.client(channel).acquire_all(self.request(request)).await;
            self.tally.add(LARGE, "acquire_all", answer.is_ok());
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Console pages that watch all views.
    async fn over_console(self, reads: bool) {
        let views = [
            "graph",
            "top",
            "locks",
            "sessions",
            "elections",
            "audit",
            "cell",
            "sessions&owner=nobody",
            CROWDED_VIEW,
        ];
        loop {
            join_all(views.iter().cycle().take(PAGES).map(|view| self.watch(view, reads))).await;
        }
    }

    async fn watch(&self, view: &str, reads: bool) {
        let mut stream = self.connect().await;
        let head = format!(
            "GET /console/events?view={view} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
            self.token()
        );
        drop(stream.write_all(head.as_bytes()).await);
        let watch = async {
            if reads {
                let mut status = [0; 12];
                let is_read = stream.read_exact(&mut status).await.is_ok();
                self.tally.add(http::HTTP, "GET /console/events", is_read && status.ends_with(b" 200"));
            }
            drain(&mut stream, reads).await;
        };
        drop(tokio::time::timeout(PAGE_FOR, watch).await);
    }

    /// Incomplete frames, bodies and gRPC messages.
    async fn with_unfinished_messages(self) {
        let mut frame = BytesMut::from(&GREETING[..]);
        let authenticate =
            v1::operation::Kind::Authenticate(v1::AuthenticateRequest { token: self.token().into() });
        let operations = vec![v1::Operation { id: 1, kind: Some(authenticate) }];
        frame::encode(&v1::ClientFrame { operations }, &mut frame);
        frame.put_u32(4 << 20);
        frame.put_bytes(0x0a, 1 << 20);
        let mut body = BytesMut::from(
            format!(
                "POST /v1/value/put HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: 262144\r\n\r\n",
                self.token()
            )
            .as_bytes(),
        );
        body.put_bytes(b' ', 200 << 10);
        loop {
            let mut open = Vec::new();
            for number in 0..UNFINISHED {
                let mut stream = self.connect().await;
                let bytes = if number % 2 == 0 { &frame } else { &body };
                let send = stream.write_all(bytes);
                drop(tokio::time::timeout(UNREAD_FOR, send).await);
                open.push(stream);
                let mut stream = http2::connect(&self.caller.address, 1 << 16).await;
                http2::send_partial_messages(&mut stream, &self.caller, 4, 100 << 10).await;
                open.push(stream);
            }
            tokio::time::sleep(5 * UNREAD_FOR).await;
        }
    }
}

/// Reads all answers, or none, until cancelled.
async fn drain(stream: &mut TcpStream, reads: bool) {
    let mut buffer = vec![0; 1 << 16];
    while reads && stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    if !reads {
        std::future::pending::<()>().await;
    }
}
