//! What a connection begins with, which tells what is spoken on it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lockkeeper_proto::frame::{GREETING, MEMBERS_GREETING};
use lockkeeper_proto::net::{Duplex, Stream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What a client of HTTP/2 says first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// Our own frames.
    Frames,
    /// The frames of a leader.
    Entries,
    Http2,
    /// Or something that HTTP/1 will refuse.
    Http1,
}

impl Opening {
    /// None: more has to be seen.
    fn of(first: &[u8]) -> Option<Opening> {
        if first.starts_with(GREETING) {
            Some(Opening::Frames)
        } else if first.starts_with(MEMBERS_GREETING) {
            Some(Opening::Entries)
        } else if first.starts_with(PREFACE) {
            Some(Opening::Http2)
        } else if [&GREETING[..], MEMBERS_GREETING, PREFACE].iter().any(|known| known.starts_with(first)) {
            None
        } else {
            Some(Opening::Http1)
        }
    }
}

/// Looks at the first bytes. Takes nothing away from the stream that it gives back. It may take as long as the other end
/// likes: give it a limit.
pub(super) async fn opening(stream: Stream) -> io::Result<(Stream, Opening)> {
    match stream {
        Stream::Tcp(stream) => {
            let opening = peek(&stream).await?;
            Ok((Stream::Tcp(stream), opening))
        }
        Stream::Other(mut stream) => {
            let mut first = BytesMut::with_capacity(PREFACE.len());
            let opening = loop {
                if let Some(opening) = Opening::of(&first) {
                    break opening;
                }
                let room = (PREFACE.len() - first.len()) as u64;
                if (&mut stream).take(room).read_buf(&mut first).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            };
            Ok((Stream::Other(Box::new(Resumed { first: first.freeze(), stream })), opening))
        }
    }
}

async fn peek(stream: &TcpStream) -> io::Result<Opening> {
    let mut first = [0; PREFACE.len()];
    let mut pause = Duration::from_millis(1);
    loop {
        let count = stream.peek(&mut first).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(opening) = Opening::of(&first[..count]) {
            return Ok(opening);
        }
        // The rest is on its way; there is no event for "more than before".
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// A stream whose first bytes were already looked at.
struct Resumed {
    first: Bytes,
    stream: Box<dyn Duplex>,
}

impl AsyncRead for Resumed {
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

impl AsyncWrite for Resumed {
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
    fn an_opening_is_told_as_soon_as_it_can_be() {
        assert_eq!(Opening::of(b""), None);
        for whole in [&GREETING[..], PREFACE] {
            for length in 1..whole.len() {
                assert_eq!(Opening::of(&whole[..length]), None, "{length}");
            }
        }
        assert_eq!(Opening::of(GREETING), Some(Opening::Frames));
        assert_eq!(Opening::of(b"LKSTRM1\n\0\0"), Some(Opening::Frames));
        assert_eq!(Opening::of(PREFACE), Some(Opening::Http2));
        for other in [&b"PO"[..], b"G", b"PRI * HTTP/1", b"LKSTRM2", b"\x16\x03"] {
            assert_eq!(Opening::of(other), Some(Opening::Http1));
        }
    }
}
