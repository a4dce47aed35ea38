//! The link straight on TCP: the frames of the stream behind their length, without HTTP/2 around them.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use lockkeeper_api::Code;
use lockkeeper_api::v1::{self, ClientFrame, ServerFrame, answer, operation};
use lockkeeper_net::credentials::Credentials;
use lockkeeper_net::frame::{self, GREETING};
use lockkeeper_net::net::{Duplex, Stream};
use rustix::net::sockopt;
use smol_str::{SmolStr, format_smolstr};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::transport::{Answers, Frames, Link, Refused};

/// A page of 1,000 locks with long queues is the largest answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// What is read at once.
const READ_BYTES: usize = 16 * 1024;

/// The id of the operation that says who we are; the client's own begin at 1 and rise.
const INTRODUCTION: u64 = u64::MAX;

/// When and how often a silent connection is probed.
const SILENT_AFTER: Duration = Duration::from_secs(10);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

/// Connects, and makes sure that a node of ours is at the other end.
pub(super) async fn open(host: SmolStr, credentials: &Credentials) -> Result<Link, Refused> {
    let failed = |error: io::Error| Refused::because(format_smolstr!("{host}: {error}"));
    let token = credentials.access_token().map_err(failed)?;
    let mut stream = credentials.connect(&host, None, probe_when_silent).await.map_err(failed)?;
    stream.write_all(GREETING).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).await.map_err(failed)?;
    if &greeting != GREETING {
        return Err(Refused::because(format_smolstr!("{host} is something else than a lockkeeper node")));
    }
    let (reader, writer) = match stream {
        Stream::Tcp(stream) => {
            let (reader, writer) = stream.into_split();
            (Incoming::Tcp(reader), Outgoing::Tcp(writer))
        }
        Stream::Other(stream) => {
            let (reader, writer) = tokio::io::split(stream);
            (Incoming::Other(reader), Outgoing::Other(writer))
        }
    };
    let mut writer = Writer { writer, unsent: BytesMut::new(), unflushed: false };
    let mut reader = Reader { reader, buffer: BytesMut::with_capacity(READ_BYTES), first: None };
    match token {
        Some(token) => introduce(&mut writer, &mut reader, token).await?,
        // A node ends connections that send no frame at all; ours may have nothing to say for long.
        None => writer.send(&ClientFrame::default()),
    }
    Ok(Link { address: host, frames: Frames::Direct(writer), answers: Answers::Direct(reader) })
}

/// Says who we are, and waits until the node has taken note.
async fn introduce(writer: &mut Writer, reader: &mut Reader, token: String) -> Result<(), Refused> {
    let kind = Some(operation::Kind::Authenticate(v1::AuthenticateRequest { token }));
    writer.send(&ClientFrame { operations: vec![v1::Operation { id: INTRODUCTION, kind }] });
    let mut first = ServerFrame::default();
    loop {
        let frame = tokio::select! {
            frame = reader.next() => frame?,
            () = writer.catch_up(), if writer.is_behind() => continue,
        };
        first.events.extend(frame.events);
        let Some(answer) = frame.answers.into_iter().find(|answer| answer.id == INTRODUCTION) else {
            continue;
        };
        return match answer.kind {
            Some(answer::Kind::Error(error)) => {
                let why = SmolStr::from(error.message.as_str());
                let leader = (!error.leader.is_empty()).then(|| SmolStr::from(error.leader.as_str()));
                let fatal = (error.code == Code::Unauthenticated.as_str())
                    .then(|| crate::error::Error::Unauthenticated(why.clone()));
                Err(Refused { why, leader, fatal })
            }
            _ => {
                reader.first = Some(first);
                Ok(())
            }
        };
    }
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
    writer: Outgoing,
    unsent: BytesMut,
    /// What was taken may lie in a buffer of the stream, as with TLS.
    unflushed: bool,
}

enum Outgoing {
    Tcp(OwnedWriteHalf),
    Other(WriteHalf<Box<dyn Duplex>>),
}

impl Writer {
    /// Whether part of a frame still has to go out.
    pub(super) fn is_behind(&self) -> bool {
        !self.unsent.is_empty() || self.unflushed
    }

    /// Sends a frame, as far as the socket takes it. Only when not behind.
    pub(super) fn send(&mut self, frame: &ClientFrame) {
        frame::encode(frame, &mut self.unsent);
        // A broken connection is noticed at its other end, with the reason. What is left goes out in `catch_up`, which
        // is polled with a waker that counts.
        let _ = self.poll_push(&mut Context::from_waker(Waker::noop()));
    }

    /// Waits until the socket takes more, and sends what is left. Cancel-safe: what was sent is forgotten.
    pub(super) async fn catch_up(&mut self) {
        if poll_fn(|context| self.poll_push(context)).await.is_err() {
            // The other half has noticed, or will: there is nothing more to do here.
            std::future::pending().await
        }
    }

    fn poll_push(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let count = match &mut self.writer {
                Outgoing::Tcp(writer) => ready!(Pin::new(writer).poll_write(context, &self.unsent))?,
                Outgoing::Other(writer) => {
                    self.unflushed = true;
                    ready!(Pin::new(writer).poll_write(context, &self.unsent))?
                }
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unsent.advance(count);
        }
        if self.unflushed
            && let Outgoing::Other(writer) = &mut self.writer
        {
            ready!(Pin::new(writer).poll_flush(context))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

/// The incoming half.
pub(crate) struct Reader {
    reader: Incoming,
    buffer: BytesMut,
    /// What came together with the answer to our introduction.
    first: Option<ServerFrame>,
}

enum Incoming {
    Tcp(OwnedReadHalf),
    Other(ReadHalf<Box<dyn Duplex>>),
}

impl Reader {
    /// The next frame. Cancel-safe: what was read stays in the buffer.
    pub(super) async fn next(&mut self) -> Result<ServerFrame, Refused> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        loop {
            match frame::decode(&mut self.buffer, ANSWER_BYTES_MAX) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(error) => return Err(Refused::because(format_smolstr!("{error}"))),
            }
            self.buffer.reserve(READ_BYTES);
            let read = match &mut self.reader {
                Incoming::Tcp(reader) => reader.read_buf(&mut self.buffer).await,
                Incoming::Other(reader) => reader.read_buf(&mut self.buffer).await,
            };
            match read {
                Ok(0) => return Err(Refused::because("the node has ended the stream")),
                Ok(_) => {}
                Err(error) => return Err(Refused::because(format_smolstr!("{error}"))),
            }
        }
    }
}
