//! A frame connection.

use std::io;

use bytes::BytesMut;
use lockkeeper_api::v1;
use lockkeeper_api::v1::operation::Kind;
use lockkeeper_net::frame::{self, GREETING};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::Caller;
use crate::harness::LONG;

/// Largest frame that is accepted from the node.
const FRAME_BYTES_MAX: usize = 64 << 20;

pub struct Frames {
    stream: TcpStream,
    buffer: BytesMut,
    next_id: u64,
}

impl Frames {
    /// Connects, and authenticates if the caller has a token.
    pub async fn connect(caller: &Caller) -> io::Result<Frames> {
        let mut stream = TcpStream::connect(&caller.address).await?;
        stream.set_nodelay(true)?;
        stream.write_all(GREETING).await?;
        stream.read_exact(&mut [0; GREETING.len()]).await?;
        let mut frames = Frames { stream, buffer: BytesMut::new(), next_id: 1 };
        if let Some(token) = caller.token.clone() {
            frames.call(vec![Kind::Authenticate(v1::AuthenticateRequest { token })]).await?;
        }
        Ok(frames)
    }

    /// Sends operations in one frame, and returns the id of the first one.
    pub async fn send(&mut self, kinds: Vec<Kind>) -> io::Result<u64> {
        let first = self.next_id;
        self.next_id += kinds.len() as u64;
        let operations = kinds.into_iter().zip(first..);
        let operations = operations.map(|(kind, id)| v1::Operation { id, kind: Some(kind) }).collect();
        let mut bytes = BytesMut::new();
        frame::encode(&v1::ClientFrame { operations }, &mut bytes);
        self.stream.write_all(&bytes).await?;
        Ok(first)
    }

    /// The next answers.
    pub async fn receive(&mut self) -> io::Result<Vec<v1::Answer>> {
        loop {
            let frame = frame::decode::<v1::ServerFrame>(&mut self.buffer, FRAME_BYTES_MAX);
            if let Some(frame) = frame.map_err(|error| io::Error::other(error.to_string()))? {
                return Ok(frame.answers);
            }
            match tokio::time::timeout(LONG, self.stream.read_buf(&mut self.buffer)).await? {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => read?,
            };
        }
    }

    /// Sends operations in one frame and returns their answers, in order.
    pub async fn call(&mut self, kinds: Vec<Kind>) -> io::Result<Vec<v1::answer::Kind>> {
        let count = kinds.len();
        let first = self.send(kinds).await?;
        let mut answers: Vec<Option<v1::answer::Kind>> = vec![None; count];
        while answers.iter().any(Option::is_none) {
            for answer in self.receive().await? {
                if let Some(place) = answer.id.checked_sub(first).and_then(|at| answers.get_mut(at as usize))
                {
                    *place = answer.kind;
                }
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }
}

#[track_caller]
pub fn assert_done(answers: &[v1::answer::Kind]) {
    for answer in answers {
        assert!(!matches!(answer, v1::answer::Kind::Error(_)), "{answer:?}");
    }
}
