//! The link on plain TCP or TLS: length-prefixed frames, without HTTP/2.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use lockkeeper_api::v1::{self, ClientFrame, ServerFrame, answer, operation};
use lockkeeper_api::{Code, Error as ContractError};
use lockkeeper_net::credentials::Credentials;
use lockkeeper_net::frame::{self, GREETING};
use lockkeeper_net::net::{Duplex, Stream};
use rustix::net::sockopt;
use smol_str::{SmolStr, format_smolstr};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::transport::{Answers, Frames, Link, LinkError};
use crate::error::Error;

/// The size limit of an answer; the largest is a page of 1,000 locks with long queues.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The size of a read.
const READ_BYTES: usize = 16 * 1024;

/// The ID of the authentication; IDs of other operations count up from 1.
const AUTHENTICATION_ID: u64 = u64::MAX;

/// TCP keepalive: idle time before the first probe, interval and number of probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// Connects, checks that the peer is a Lockkeeper node, and authenticates.
pub(super) async fn open(host: SmolStr, credentials: &Credentials) -> Result<Link, LinkError> {
    let failed = |error: io::Error| LinkError::new(format_smolstr!("{host}: {error}"));
    let token = credentials.access_token().map_err(failed)?;
    let mut stream = credentials.connect(&host, None, enable_keepalive).await.map_err(failed)?;
    stream.write_all(GREETING).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).await.map_err(failed)?;
    if &greeting != GREETING {
        return Err(LinkError::new(format_smolstr!("{host} is not a lockkeeper node")));
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
        Some(token) => authenticate(&mut writer, &mut reader, token).await?,
        // A node closes connections that send no frame at all, and this one may be idle for long.
        None => writer.send(&ClientFrame::default()),
    }
    Ok(Link { address: host, frames: Frames::Direct(writer), answers: Answers::Direct(reader) })
}

/// Authenticates with an access token and waits for the answer.
async fn authenticate(writer: &mut Writer, reader: &mut Reader, token: String) -> Result<(), LinkError> {
    let kind = Some(operation::Kind::Authenticate(v1::AuthenticateRequest { token }));
    writer.send(&ClientFrame { operations: vec![v1::Operation { id: AUTHENTICATION_ID, kind }] });
    let mut first = ServerFrame::default();
    loop {
        let frame = tokio::select! {
            frame = reader.next() => frame?,
            () = writer.flush_unsent(), if writer.has_unsent() => continue,
        };
        first.events.extend(frame.events);
        let Some(answer) = frame.answers.into_iter().find(|answer| answer.id == AUTHENTICATION_ID) else {
            continue;
        };
        return match answer.kind {
            Some(answer::Kind::Error(error)) => Err(authentication_error(error)),
            _ => {
                reader.first = Some(first);
                Ok(())
            }
        };
    }
}

/// The error of a failed authentication. Only `unauthenticated` is fatal: a retry will not fix it.
fn authentication_error(error: v1::Error) -> LinkError {
    let why = SmolStr::new(&error.message);
    let Ok(error) = ContractError::try_from(error) else { return LinkError::new(why) };
    let leader = error.leader.clone().flatten().map(SmolStr::from);
    let fatal = (error.code == Code::Unauthenticated).then(|| Error::from_contract(error));
    LinkError { why, leader, fatal }
}

/// Enables TCP keepalive, which detects a dead node on an idle connection.
fn enable_keepalive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}

/// The outgoing half. Buffers what the socket does not accept at once; until that is sent, it accepts no further frame.
pub(crate) struct Writer {
    writer: Outgoing,
    unsent: BytesMut,
    /// The stream may hold data in a buffer of its own, as with TLS.
    unflushed: bool,
}

enum Outgoing {
    Tcp(OwnedWriteHalf),
    Other(WriteHalf<Box<dyn Duplex>>),
}

impl Writer {
    /// Whether part of a frame is still unsent.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || self.unflushed
    }

    /// Sends a frame, as far as the socket accepts it. Call it only without unsent data.
    pub(super) fn send(&mut self, frame: &ClientFrame) {
        frame::encode(frame, &mut self.unsent);
        // A broken connection is noticed by the reader, with the reason. `flush_unsent` sends the rest, with a real waker.
        let _ = self.poll_push(&mut Context::from_waker(Waker::noop()));
    }

    /// Sends the rest as the socket accepts it. Cancel-safe: sent data leaves the buffer.
    pub(super) async fn flush_unsent(&mut self) {
        if poll_fn(|context| self.poll_push(context)).await.is_err() {
            // The reader reports the error.
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
    /// The frame that contained the answer to the authentication.
    first: Option<ServerFrame>,
}

enum Incoming {
    Tcp(OwnedReadHalf),
    Other(ReadHalf<Box<dyn Duplex>>),
}

impl Reader {
    /// Reads the next frame. Cancel-safe: partial data stays in the buffer.
    pub(super) async fn next(&mut self) -> Result<ServerFrame, LinkError> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        loop {
            match frame::decode(&mut self.buffer, ANSWER_BYTES_MAX) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(error) => return Err(LinkError::new(format_smolstr!("{error}"))),
            }
            self.buffer.reserve(READ_BYTES);
            let read = match &mut self.reader {
                Incoming::Tcp(reader) => reader.read_buf(&mut self.buffer).await,
                Incoming::Other(reader) => reader.read_buf(&mut self.buffer).await,
            };
            match read {
                Ok(0) => return Err(LinkError::new("the node closed the stream")),
                Ok(_) => {}
                Err(error) => return Err(LinkError::new(format_smolstr!("{error}"))),
            }
        }
    }
}
