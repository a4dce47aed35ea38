//! A connection between members: length-prefixed frames directly on TCP, after a greeting from both sides. There is no HTTP/2, and none
//! of its tasks, between openraft and the socket. See docs/adr/0015-entries-on-tcp.md.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_net::frame::{self, MEMBERS_GREETING};
use lockkeeper_net::net;
use prost::Message;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::MESSAGE_BYTES_MAX;
use super::dial::Dialer;

/// Minimum buffer space for a read.
const READ_BYTES: usize = 16 << 10;
/// TCP keepalive: an idle connection is enabled after this time, so that a cut is detected before the next entry is sent.
const IDLE_AFTER: Duration = Duration::from_secs(5);
const PROBE_EVERY: Duration = Duration::from_secs(1);
const PROBES: u32 = 3;
/// Maximum size of a message from a sender that has not proved its membership. The first request of a member is a ping.
const UNPROVEN_BYTES_MAX: usize = 4 << 10;

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Both halves of a connection between members.
pub(super) struct Direct {
    incoming: Incoming,
    outgoing: Outgoing,
}

impl Direct {
    fn new(stream: net::Stream) -> Direct {
        let (reader, writer): (Reader, Writer) = match stream {
            net::Stream::Tcp(stream) => {
                let (reader, writer) = stream.into_split();
                (Box::new(reader), Box::new(writer))
            }
            net::Stream::Other(stream) => {
                let (reader, writer) = tokio::io::split(stream);
                (Box::new(reader), Box::new(writer))
            }
        };
        let incoming = Incoming { reader, buffer: BytesMut::new(), bytes_max: MESSAGE_BYTES_MAX };
        Direct { incoming, outgoing: Outgoing { writer, out: BytesMut::new(), is_flushed: true } }
    }

    /// Connects to a member and greets it.
    pub(super) async fn open(dialer: &Dialer, address: &str, limit: Duration) -> io::Result<Direct> {
        let greeted = async {
            let mut direct = Direct::new(dialer.connect(address, None, enable_keepalive).await?);
            direct.greet().await?;
            direct.expect_greeting().await?;
            io::Result::Ok(direct)
        };
        let greeted = timeout(limit, greeted).await;
        greeted.map_err(|_| io::Error::other(format!("no connection within {limit:?}")))?
    }

    pub(super) fn split(self) -> (Incoming, Outgoing) {
        (self.incoming, self.outgoing)
    }

    /// Accepts a connection that begins with a member's greeting. Large messages are read only after it has proved its membership.
    pub(super) async fn accept(stream: net::Stream) -> io::Result<(Incoming, Outgoing)> {
        let mut direct = Direct::new(stream);
        direct.expect_greeting().await?;
        direct.greet().await?;
        direct.incoming.bytes_max = UNPROVEN_BYTES_MAX;
        Ok((direct.incoming, direct.outgoing))
    }

    async fn greet(&mut self) -> io::Result<()> {
        self.outgoing.writer.write_all(MEMBERS_GREETING).await?;
        self.outgoing.writer.flush().await
    }

    async fn expect_greeting(&mut self) -> io::Result<()> {
        let mut greeting = [0; MEMBERS_GREETING.len()];
        self.incoming.reader.read_exact(&mut greeting).await?;
        match &greeting == MEMBERS_GREETING {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the other side does not speak the members' protocol",
            )),
        }
    }
}

/// Read half of a connection.
pub(super) struct Incoming {
    reader: Reader,
    buffer: BytesMut,
    /// Maximum size of a message.
    bytes_max: usize,
}

impl Incoming {
    /// Sets the maximum size of a message.
    pub(super) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Reads the next message. `None` at the end. Cancel-safe: bytes that were read stay in the buffer.
    pub(super) async fn next<M: Message + Default>(&mut self) -> io::Result<Option<M>> {
        loop {
            let message = frame::decode(&mut self.buffer, self.bytes_max)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if message.is_some() {
                return Ok(message);
            }
            self.buffer.reserve(READ_BYTES);
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }
}

/// Write half of a connection.
pub(super) struct Outgoing {
    writer: Writer,
    /// Frames that are not written yet.
    out: BytesMut,
    is_flushed: bool,
}

impl Outgoing {
    /// Queues a message.
    pub(super) fn push(&mut self, message: &impl Message) {
        frame::encode(message, &mut self.out);
        self.is_flushed = false;
    }

    pub(super) fn is_written(&self) -> bool {
        self.out.is_empty() && self.is_flushed
    }

    /// Writes all queued messages. Cancel-safe: bytes that were written leave the buffer.
    pub(super) async fn write(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            if self.writer.write_buf(&mut self.out).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        self.writer.flush().await?;
        self.is_flushed = true;
        Ok(())
    }
}

/// Enables TCP keepalive, so that the system detects a cut connection while it is idle.
fn enable_keepalive(stream: &TcpStream) {
    let enabled = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, IDLE_AFTER))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, PROBE_EVERY))
        .and_then(|()| sockopt::set_tcp_keepcnt(stream, PROBES));
    if let Err(error) = enabled {
        tracing::debug!(%error, "failed to enable TCP keepalive");
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;
    use lockkeeper_api::peer;
    use tokio::io::DuplexStream;

    use super::*;

    fn message(body: &'static [u8]) -> peer::Answer {
        peer::Answer { body: Bytes::from_static(body) }
    }

    fn on(stream: DuplexStream) -> (Incoming, Outgoing) {
        Direct::new(net::Stream::Other(Box::new(stream))).split()
    }

    #[tokio::test]
    async fn an_interrupted_write_resumes_where_it_stopped() {
        let (one, other) = tokio::io::duplex(64);
        let ((_incoming, mut outgoing), (mut incoming, _outgoing)) = (on(one), on(other));
        let long: &[u8] = &[7; 1_000];
        for _ in 0..3 {
            outgoing.push(&peer::Answer { body: Bytes::from_static(&[7; 1_000]) });
        }
        for _ in 0..3 {
            let read = loop {
                let _ = outgoing.write().now_or_never();
                if let Some(read) = incoming.next::<peer::Answer>().now_or_never() {
                    break read.unwrap().unwrap();
                }
            };
            assert_eq!(read.body, long);
        }
    }

    #[tokio::test]
    async fn an_end_within_a_frame_is_an_error() {
        let (one, other) = tokio::io::duplex(1 << 16);
        let ((first_half, mut outgoing), (mut incoming, _outgoing)) = (on(one), on(other));
        outgoing.push(&message(b"cut"));
        outgoing.out.truncate(6);
        outgoing.write().await.unwrap();
        drop((first_half, outgoing));
        assert!(incoming.next::<peer::Answer>().await.is_err());
    }

    #[tokio::test]
    async fn a_wrong_greeting_is_refused() {
        let (one, mut other) = tokio::io::duplex(64);
        other.write_all(b"LKSTRM1\n").await.unwrap();
        let refused = Direct::accept(net::Stream::Other(Box::new(one))).await.err().expect("refused");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}
