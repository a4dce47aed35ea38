//! A raw frame connection to a node, for requests that a keeper cannot make, such as opening many sessions.

use bytes::BytesMut;
use lockkeeper_api::v1::{self, answer, operation};
use lockkeeper_net::frame::{self, GREETING};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::CompareError;

/// Operations in one frame.
const FRAME: usize = 1_000;
/// Largest frame that is accepted.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// A connection to a node.
pub struct Link {
    stream: TcpStream,
    buffer: BytesMut,
}

fn failed(error: impl std::fmt::Display) -> CompareError {
    CompareError::Protocol(format!("the node did not answer: {error}"))
}

impl Link {
    /// Connects to the node at this address.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub async fn connect(address: &str) -> Result<Link, CompareError> {
        let mut stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.write_all(GREETING).await.map_err(failed)?;
        stream.read_exact(&mut [0; GREETING.len()]).await.map_err(failed)?;
        Ok(Link { stream, buffer: BytesMut::new() })
    }

    /// Sends the operations in one frame without waiting for answers, which queued requests do not have yet. The connection
    /// cannot be used for other requests afterwards.
    ///
    /// # Errors
    ///
    /// If the node closes the connection.
    pub async fn send(&mut self, operations: Vec<operation::Kind>) -> Result<(), CompareError> {
        let with_ids = operations.into_iter().zip(1..);
        let operations = with_ids.map(|(kind, id)| v1::Operation { id, kind: Some(kind) }).collect();
        let mut bytes = BytesMut::new();
        frame::encode(&v1::ClientFrame { operations }, &mut bytes);
        self.stream.write_all(&bytes).await.map_err(failed)
    }

    /// Sends the operations in frames and returns all answers, in the order of the operations.
    ///
    /// # Errors
    ///
    /// If the node closes the connection.
    pub async fn all(&mut self, operations: Vec<operation::Kind>) -> Result<Vec<answer::Kind>, CompareError> {
        let mut answers = Vec::with_capacity(operations.len());
        let mut rest = operations.into_iter().peekable();
        while rest.peek().is_some() {
            let operations: Vec<_> = rest
                .by_ref()
                .take(FRAME)
                .zip(1..)
                .map(|(kind, id)| v1::Operation { id, kind: Some(kind) })
                .collect();
            let count = operations.len();
            let mut bytes = BytesMut::new();
            frame::encode(&v1::ClientFrame { operations }, &mut bytes);
            self.stream.write_all(&bytes).await.map_err(failed)?;
            let mut of_frame = Vec::with_capacity(count);
            while of_frame.len() < count {
                match frame::decode::<v1::ServerFrame>(&mut self.buffer, FRAME_BYTES_MAX).map_err(failed)? {
                    Some(frame) => of_frame.extend(frame.answers),
                    None if self.stream.read_buf(&mut self.buffer).await.map_err(failed)? == 0 => {
                        return Err(failed("it closed the connection"));
                    }
                    None => {}
                }
            }
            of_frame.sort_by_key(|answer| answer.id);
            answers.extend(of_frame.into_iter().filter_map(|answer| answer.kind));
        }
        Ok(answers)
    }
}
