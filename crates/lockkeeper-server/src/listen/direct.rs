//! Frames straight on TCP: what our own library speaks. One task for each connection, one read and one
//! write for each frame.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use futures_util::{Stream, StreamExt};
use lockkeeper_proto::frame::{self, GREETING, NotAFrame};
use lockkeeper_proto::v1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

use crate::calls::Calls;
use crate::session::stream::ClientStream;

/// Largest frame that is taken in.
const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;
/// What is read at once.
const READ_BYTES: usize = 8 * 1024;

/// Whether the client greets like our library. Looks, but takes nothing away.
pub(super) async fn is_greeting(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; GREETING.len()];
    let mut pause = Duration::from_millis(1);
    loop {
        let count = stream.peek(&mut first).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first[..count] != GREETING[..count] {
            return Ok(false);
        }
        if count == GREETING.len() {
            return Ok(true);
        }
        // The rest of the greeting is on its way; there is no event for "more than before".
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Serves a client until one side ends.
pub(super) async fn serve(stream: TcpStream, calls: Calls) {
    if let Err(error) = exchange(stream, calls).await {
        tracing::debug!(%error, "a client's connection ended");
    }
}

async fn exchange(stream: TcpStream, calls: Calls) -> io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let mut greeting = [0; GREETING.len()];
    reader.read_exact(&mut greeting).await?;
    writer.write_all(GREETING).await?;
    let inbound = Inbound { reader, buffer: BytesMut::with_capacity(READ_BYTES) };
    let mut frames = ClientStream::new(inbound, calls);
    let mut out = BytesMut::with_capacity(READ_BYTES);
    while let Some(frame) = frames.next().await {
        frame::encode(&frame, &mut out);
        writer.write_all(&out).await?;
        out.clear();
    }
    Ok(())
}

/// The frames of a client.
struct Inbound {
    reader: OwnedReadHalf,
    buffer: BytesMut,
}

impl Stream for Inbound {
    type Item = Result<v1::ClientFrame, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            match frame::decode(&mut this.buffer, FRAME_BYTES_MAX) {
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(not_a_frame(error)))),
            }
            match read_some(&this.reader, &mut this.buffer, context) {
                Poll::Ready(Ok(0)) => return Poll::Ready(None),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

fn read_some(
    reader: &OwnedReadHalf,
    buffer: &mut BytesMut,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    buffer.reserve(READ_BYTES);
    loop {
        ready!(reader.as_ref().poll_read_ready(context))?;
        match reader.try_read_buf(buffer) {
            // It was not ready after all: ask again, so that somebody wakes us.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
    }
}

fn not_a_frame(error: NotAFrame) -> io::Error {
    tracing::warn!(%error, "a client sent something that is no frame and was cut off");
    io::Error::new(io::ErrorKind::InvalidData, error)
}
