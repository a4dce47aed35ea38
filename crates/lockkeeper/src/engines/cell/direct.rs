//! The link straight on TCP: the frames of the stream behind their length, without HTTP/2 around them.

use std::io;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use lockkeeper_proto::frame::{self, GREETING};
use lockkeeper_proto::v1::{ClientFrame, ServerFrame};
use rustix::net::sockopt;
use smol_str::{SmolStr, format_smolstr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::transport::{Answers, Frames, Link, Refused};

/// A page of 1,000 locks with long queues is the largest answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// What is read at once.
const READ_BYTES: usize = 16 * 1024;

/// When and how often a silent connection is probed.
const SILENT_AFTER: Duration = Duration::from_secs(10);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

/// Connects, and makes sure that a node of ours is at the other end.
pub(super) async fn open(host: SmolStr) -> Result<Link, Refused> {
    let failed = |error: io::Error| Refused::because(format_smolstr!("{host}: {error}"));
    let mut stream = TcpStream::connect(host.as_str()).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    probe_when_silent(&stream).map_err(failed)?;
    stream.write_all(GREETING).await.map_err(failed)?;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).await.map_err(failed)?;
    if &greeting != GREETING {
        return Err(Refused::because(format_smolstr!("{host} is something else than a lockkeeper node")));
    }
    let (reader, writer) = stream.into_split();
    Ok(Link {
        address: host,
        frames: Frames::Direct(Writer { writer, unsent: BytesMut::new() }),
        answers: Answers::Direct(Reader { reader, buffer: BytesMut::with_capacity(READ_BYTES) }),
    })
}

/// A node that has gone without a word is noticed by the system, also when nothing is asked of it.
fn probe_when_silent(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENT_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    Ok(())
}

/// The outgoing half. What the socket does not take at once is kept, and no further frame is taken.
pub(crate) struct Writer {
    writer: OwnedWriteHalf,
    unsent: BytesMut,
}

impl Writer {
    /// Whether part of a frame still has to go out.
    pub(super) fn is_behind(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends a frame, as far as the socket takes it. Only when not behind.
    pub(super) fn send(&mut self, frame: &ClientFrame) {
        frame::encode(frame, &mut self.unsent);
        // A broken connection is noticed at its other end, with the reason.
        let _ = self.push();
    }

    /// Waits until the socket takes more, and sends what is left. Cancel-safe: what was sent is forgotten.
    pub(super) async fn catch_up(&mut self) {
        while self.is_behind() {
            if self.writer.writable().await.is_err() || self.push().is_err() {
                // The other half has noticed, or will: there is nothing more to do here.
                return std::future::pending().await;
            }
        }
    }

    fn push(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.writer.try_write(&self.unsent) {
                Ok(count) => self.unsent.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The incoming half.
pub(crate) struct Reader {
    reader: OwnedReadHalf,
    buffer: BytesMut,
}

impl Reader {
    /// The next frame. Cancel-safe: what was read stays in the buffer.
    pub(super) async fn next(&mut self) -> Result<ServerFrame, Refused> {
        loop {
            match frame::decode(&mut self.buffer, ANSWER_BYTES_MAX) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(error) => return Err(Refused::because(format_smolstr!("{error}"))),
            }
            self.buffer.reserve(READ_BYTES);
            match self.reader.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(Refused::because("the node has ended the stream")),
                Ok(_) => {}
                Err(error) => return Err(Refused::because(format_smolstr!("{error}"))),
            }
        }
    }
}
