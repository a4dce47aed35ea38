//! Frames directly on TCP, the protocol of our own library. One task for each connection, one read and one write for each
//! frame.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use futures_util::StreamExt;
use lockkeeper_api::v1;
use lockkeeper_net::frame::{self, FrameError, GREETING};
use lockkeeper_net::net::{Duplex, Stream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf};
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::Sleep;

use crate::api::Api;
use crate::limits::arrivals::{Arrivals, FEW_BYTES};
use crate::limits::budget::{Charge, ConnectionBudget, SMALL_BYTES};
use crate::limits::deadlines::MESSAGE_WITHIN;
use crate::limits::log_throttle::LogThrottle;
use crate::session::connection::Connection;
use crate::session::decode_limits::check_frame;
use crate::session::stream::ClientStream;

/// Largest frame that is accepted.
const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Largest frame of a client that is not authenticated yet.
const UNAUTHENTICATED_FRAME_BYTES_MAX: usize = 64 * 1024;
/// Size of one read.
const READ_BYTES: usize = 8 * 1024;

/// Serves a client until one side ends.
pub(super) async fn serve(stream: Stream, api: Api, budget: ConnectionBudget) {
    let serving = async {
        match stream {
            Stream::Tcp(stream) => {
                let (reader, writer) = stream.into_split();
                exchange(reader, writer, api, &budget).await
            }
            Stream::Other(stream) => {
                let (reader, writer) = tokio::io::split(stream);
                exchange(reader, writer, api, &budget).await
            }
        }
    };
    tokio::select! {
        ended = serving => if let Err(error) = ended {
            tracing::debug!(%error, "a client's connection ended");
        },
        () = budget.stalled() => tracing::debug!("closed a connection: the client does not read its answers"),
    }
}

async fn exchange(
    mut reader: impl Readable,
    mut writer: impl AsyncWrite + Unpin,
    api: Api,
    budget: &ConnectionBudget,
) -> io::Result<()> {
    let mut greeting = [0; GREETING.len()];
    reader.read_exact(&mut greeting).await?;
    writer.write_all(GREETING).await?;
    writer.flush().await?;
    let connection = Arc::new(Connection::default());
    let buffer = BytesMut::with_capacity(READ_BYTES);
    let inbound = Inbound {
        reader,
        buffer,
        connection: connection.clone(),
        arrivals: Some(budget.arrivals.clone()),
        is_new: true,
        deadline: None,
        charge: None,
    };
    let mut frames = ClientStream::on(connection.clone(), budget, inbound, api);
    let mut out = BytesMut::with_capacity(READ_BYTES);
    while let Some(frame) = frames.next().await {
        frame::encode(&frame, &mut out);
        drop(frame);
        let _written = connection.charge(out.len());
        writer.write_all(&out).await?;
        // No effect on TCP; other streams may buffer what is written.
        writer.flush().await?;
        out.clear();
    }
    Ok(())
}

/// The read half of a stream.
trait Readable: AsyncRead + Unpin {
    /// Appends available bytes to the buffer.
    fn poll_read_buf(&mut self, buffer: &mut BytesMut, context: &mut Context<'_>) -> Poll<io::Result<usize>>;
}

impl Readable for OwnedReadHalf {
    fn poll_read_buf(&mut self, buffer: &mut BytesMut, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.as_ref().poll_read_ready(context))?;
            match self.try_read_buf(buffer) {
                // A spurious readiness: poll again to register the waker.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

impl Readable for ReadHalf<Box<dyn Duplex>> {
    fn poll_read_buf(&mut self, buffer: &mut BytesMut, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // Reads through a buffer on the stack: filling spare capacity directly needs unsafe code.
        let mut bytes = [0; READ_BYTES];
        let mut read = ReadBuf::new(&mut bytes);
        ready!(Pin::new(self).poll_read(context, &mut read))?;
        buffer.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }
}

/// The incoming frames of a client.
struct Inbound<R> {
    reader: R,
    buffer: BytesMut,
    connection: Arc<Connection>,
    /// What has arrived in TLS records, until the client is authenticated.
    arrivals: Option<Arrivals>,
    /// No frame has arrived yet.
    is_new: bool,
    /// When a new client must have sent a frame and authenticated, or an incomplete frame must be complete.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Counts the incomplete frame.
    charge: Option<Charge>,
}

impl<R> Inbound<R> {
    /// Counts an incomplete frame. Large frames are refused while the client's identity is above its budget, and all but small
    /// ones of clients that are not authenticated.
    fn charge_incomplete(&mut self) -> io::Result<()> {
        self.charge = None;
        let few_bytes = match self.connection.is_authenticated() {
            true => SMALL_BYTES,
            false => FEW_BYTES,
        };
        if self.buffer.len() <= few_bytes.min(READ_BYTES) {
            return Ok(());
        }
        if self.buffer.len() > few_bytes && !self.connection.has_identity_room() {
            static THROTTLE: LogThrottle = LogThrottle::new();
            if let Some(suppressed) = THROTTLE.allow() {
                tracing::warn!(
                    suppressed,
                    "closed a connection: large frame, and the client's identity is above its byte budget"
                );
            }
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.charge = self.connection.charge_identity(self.buffer.len());
        Ok(())
    }

    /// Fails when the client is too slow. An incomplete frame must be completed in time, because it occupies memory. A new
    /// client must send a frame and authenticate in time, because it occupies a connection.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if self.buffer.is_empty() && !self.must_send() {
            self.deadline = None;
            return Poll::Pending;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(MESSAGE_WITHIN)));
        ready!(deadline.as_mut().poll(context));
        static THROTTLE: LogThrottle = LogThrottle::new();
        if let Some(suppressed) = THROTTLE.allow() {
            tracing::info!(suppressed, "closed a connection: no complete frame or no authentication in time");
        }
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }
}

impl<R> Inbound<R> {
    fn must_send(&self) -> bool {
        self.is_new || !self.connection.is_authenticated()
    }
}

impl<R: Readable> futures_util::Stream for Inbound<R> {
    type Item = Result<v1::ClientFrame, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            let bytes_max = match this.connection.is_authenticated() {
                true => {
                    if let Some(arrivals) = this.arrivals.take() {
                        arrivals.stop();
                    }
                    FRAME_BYTES_MAX
                }
                false => UNAUTHENTICATED_FRAME_BYTES_MAX,
            };
            match frame::decode_checked(&mut this.buffer, bytes_max, check_frame) {
                Ok(Some(frame)) => {
                    this.is_new = false;
                    this.charge = None;
                    if let Some(arrivals) = &this.arrivals {
                        arrivals.taken();
                    }
                    if !this.must_send() {
                        this.deadline = None;
                    }
                    return Poll::Ready(Some(Ok(frame)));
                }
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(not_a_frame(error)))),
            }
            this.buffer.reserve(READ_BYTES);
            match this.reader.poll_read_buf(&mut this.buffer, context) {
                Poll::Ready(Ok(0)) => return Poll::Ready(None),
                Poll::Ready(Ok(_)) => {
                    if let Err(error) = this.charge_incomplete() {
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
                Poll::Pending => return this.poll_deadline(context).map(|error| Some(Err(error))),
            }
        }
    }
}

fn not_a_frame(error: FrameError) -> io::Error {
    static THROTTLE: LogThrottle = LogThrottle::new();
    if let Some(suppressed) = THROTTLE.allow() {
        tracing::warn!(%error, suppressed, "closed a connection: malformed frame");
    }
    io::Error::new(io::ErrorKind::InvalidData, error)
}
