//! A connection between members: frames straight on TCP, each behind its length, after a greeting from both sides. No HTTP/2 and none
//! of its tasks are between openraft and the socket. See docs/adr/0015-entries-on-tcp.md.

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

/// What is read at once.
const READ_BYTES: usize = 16 << 10;
/// TCP keepalive: an idle connection is probed after this time, so that the next entry does not have to discover that it is cut.
const SILENT_AFTER: Duration = Duration::from_secs(5);
const PROBE_EVERY: Duration = Duration::from_secs(1);
const PROBES: u32 = 3;
/// Largest message of somebody who has not proved yet to be a member. The first request of a member is a ping.
const UNPROVEN_BYTES_MAX: usize = 64 << 10;

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Both halves of a connection, by which members have greeted each other.
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
            let mut direct = Direct::new(dialer.connect(address, None, probe).await?);
            direct.greet().await?;
            direct.expect_greeting().await?;
            io::Result::Ok(direct)
        };
        let greeted = timeout(limit, greeted).await;
        greeted.map_err(|_| io::Error::other(format!("no connection within {limit:?}")))?
    }

    /// Both halves.
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
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "a member answers with something else")),
        }
    }
}

/// The half that is read.
pub(super) struct Incoming {
    reader: Reader,
    buffer: BytesMut,
    /// Largest message that is read.
    bytes_max: usize,
}

impl Incoming {
    /// Reads messages up to this size from now on.
    pub(super) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// The next message; `None` at the end. Cancel-safe: what was read stays in the buffer.
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

/// The half that is written.
pub(super) struct Outgoing {
    writer: Writer,
    /// Frames that are not written yet.
    out: BytesMut,
    is_flushed: bool,
}

impl Outgoing {
    /// Adds a message to what is to be written.
    pub(super) fn push(&mut self, message: &impl Message) {
        frame::encode(message, &mut self.out);
        self.is_flushed = false;
    }

    pub(super) fn is_written(&self) -> bool {
        self.out.is_empty() && self.is_flushed
    }

    /// Writes all of it. Cancel-safe: what was written is gone from the buffer.
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

/// Enables TCP keepalive, so that the system notices a cut connection while it is idle.
fn probe(stream: &TcpStream) {
    let probed = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, SILENT_AFTER))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, PROBE_EVERY))
        .and_then(|()| sockopt::set_tcp_keepcnt(stream, PROBES));
    if let Err(error) = probed {
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
    async fn a_write_that_is_broken_off_goes_on_where_it_was() {
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
    async fn both_must_greet_as_members() {
        let (one, mut other) = tokio::io::duplex(64);
        other.write_all(b"LKSTRM1\n").await.unwrap();
        let refused = Direct::accept(net::Stream::Other(Box::new(one))).await.err().expect("refused");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}
