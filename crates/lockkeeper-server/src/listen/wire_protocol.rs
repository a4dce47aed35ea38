//! Detects the protocol of a connection by its first bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lockkeeper_net::frame::{GREETING, MEMBERS_GREETING};
use lockkeeper_net::net::{Duplex, Stream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The HTTP/2 connection preface.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WireProtocol {
    /// Our own frames, from a client.
    Frames,
    /// Frames between members.
    Members,
    Http2,
    /// HTTP/1, or anything else, which the HTTP/1 parser refuses.
    Http1,
}

impl WireProtocol {
    /// Returns the protocol, or `None` if more bytes are needed.
    fn of(first: &[u8]) -> Option<WireProtocol> {
        if first.starts_with(GREETING) {
            Some(WireProtocol::Frames)
        } else if first.starts_with(MEMBERS_GREETING) {
            Some(WireProtocol::Members)
        } else if first.starts_with(PREFACE) {
            Some(WireProtocol::Http2)
        } else if [&GREETING[..], MEMBERS_GREETING, PREFACE].iter().any(|known| known.starts_with(first)) {
            None
        } else {
            Some(WireProtocol::Http1)
        }
    }
}

/// The first bytes of a connection, for `crate::fuzz`.
#[cfg(feature = "fuzz")]
pub(super) fn fuzz(data: &[u8]) {
    let whole = WireProtocol::of(data);
    assert!(whole.is_some() || data.len() < PREFACE.len());
    // Once detected, further bytes do not change it.
    let early = (0..data.len()).find_map(|length| WireProtocol::of(&data[..length]));
    assert!(early.is_none() || early == whole);
}

/// Detects the protocol by the first bytes, which stay in the returned stream. The caller must set a timeout: it waits while
/// the other end sends nothing.
pub(super) async fn detect(stream: Stream) -> io::Result<(Stream, WireProtocol)> {
    match stream {
        Stream::Tcp(stream) => {
            let protocol = peek(&stream).await?;
            Ok((Stream::Tcp(stream), protocol))
        }
        Stream::Other(mut stream) => {
            let mut first = BytesMut::with_capacity(PREFACE.len());
            let protocol = loop {
                if let Some(protocol) = WireProtocol::of(&first) {
                    break protocol;
                }
                let room = (PREFACE.len() - first.len()) as u64;
                if (&mut stream).take(room).read_buf(&mut first).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            };
            Ok((Stream::Other(Box::new(ReplayStream { first: first.freeze(), stream })), protocol))
        }
    }
}

async fn peek(stream: &TcpStream) -> io::Result<WireProtocol> {
    let mut first = [0; PREFACE.len()];
    let mut pause = Duration::from_millis(1);
    loop {
        let count = stream.peek(&mut first).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(protocol) = WireProtocol::of(&first[..count]) {
            return Ok(protocol);
        }
        // Waits for the rest. There is no event for "more bytes than before".
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// A stream whose first bytes were already read.
struct ReplayStream {
    first: Bytes,
    stream: Box<dyn Duplex>,
}

impl AsyncRead for ReplayStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ReplayStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_is_detected_as_soon_as_possible() {
        assert_eq!(WireProtocol::of(b""), None);
        for whole in [&GREETING[..], PREFACE] {
            for length in 1..whole.len() {
                assert_eq!(WireProtocol::of(&whole[..length]), None, "{length}");
            }
        }
        assert_eq!(WireProtocol::of(GREETING), Some(WireProtocol::Frames));
        assert_eq!(WireProtocol::of(b"LKSTRM1\n\0\0"), Some(WireProtocol::Frames));
        assert_eq!(WireProtocol::of(PREFACE), Some(WireProtocol::Http2));
        for other in [&b"PO"[..], b"G", b"PRI * HTTP/1", b"LKSTRM2", b"\x16\x03"] {
            assert_eq!(WireProtocol::of(other), Some(WireProtocol::Http1));
        }
    }
}
