//! Fills a node with sessions and held locks, to see what a million of them cost.
//!
//! `cargo run --release -p lockkeeper-lab --example fill -- 127.0.0.1:7420 100000 1000000`
//!
//! Everything goes over one connection, straight on the frames, because a keeper shares one session.

use std::time::Instant;

use bytes::BytesMut;
use lockkeeper_proto::frame::{self, GREETING};
use lockkeeper_proto::v1;
use lockkeeper_proto::v1::{answer, operation};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Operations in one frame.
const FRAME: usize = 1_000;
/// Long enough to look at it in peace.
const TTL_MS: u64 = 24 * 60 * 60 * 1_000;

type Failed = Box<dyn std::error::Error>;

struct Link {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Link {
    /// Sends the operations in frames and gathers all answers, in order of their ids.
    async fn all(&mut self, operations: Vec<operation::Kind>) -> Result<Vec<answer::Kind>, Failed> {
        let mut answers = Vec::with_capacity(operations.len());
        let mut rest = operations.into_iter().peekable();
        while rest.peek().is_some() {
            let operations: Vec<_> = rest
                .by_ref()
                .take(FRAME)
                .zip(1..)
                .map(|(kind, id)| v1::Operation { id, kind: Some(kind) })
                .collect();
            let count = operations.len();
            let mut bytes = BytesMut::new();
            frame::encode(&v1::ClientFrame { operations }, &mut bytes);
            self.stream.write_all(&bytes).await?;
            let mut of_frame = Vec::with_capacity(count);
            while of_frame.len() < count {
                match frame::decode::<v1::ServerFrame>(&mut self.buffer, 64 << 20)? {
                    Some(frame) => of_frame.extend(frame.answers),
                    None if self.stream.read_buf(&mut self.buffer).await? == 0 => {
                        return Err("the node ended the connection".into());
                    }
                    None => {}
                }
            }
            of_frame.sort_by_key(|answer| answer.id);
            answers.extend(of_frame.into_iter().filter_map(|answer| answer.kind));
        }
        Ok(answers)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let words: Vec<String> = std::env::args().collect();
    let [_, address, sessions, locks] = &words[..] else {
        return Err("usage: fill HOST:PORT SESSIONS LOCKS".into());
    };
    let (sessions, locks): (usize, usize) = (sessions.parse()?, locks.parse()?);
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(GREETING).await?;
    stream.read_exact(&mut [0; GREETING.len()]).await?;
    let mut link = Link { stream, buffer: BytesMut::new() };

    let began = Instant::now();
    let open = |number| v1::OpenSessionRequest { ttl_ms: TTL_MS, owner: format!("host-{number}/worker") };
    let opened = link.all((0..sessions).map(|n| operation::Kind::OpenSession(open(n))).collect()).await?;
    let ids: Vec<String> = opened
        .into_iter()
        .map(|answer| match answer {
            answer::Kind::OpenSession(opened) => Ok(opened.session),
            other => Err(format!("not opened: {other:?}")),
        })
        .collect::<Result<_, _>>()?;
    println!("{sessions} sessions in {:.1} s", began.elapsed().as_secs_f64());

    let began = Instant::now();
    let acquire = |number: usize| v1::AcquireRequest {
        session: ids[number % ids.len()].clone(),
        lock: format!("orders/{number:07}"),
        request: format!("r{number}"),
        ..Default::default()
    };
    let granted = link.all((0..locks).map(|n| operation::Kind::Acquire(acquire(n))).collect()).await?;
    let held = granted.iter().filter(|answer| matches!(answer, answer::Kind::Grant(_))).count();
    println!("{held} of {locks} locks held in {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}
