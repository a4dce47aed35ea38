//! Reassembles the messages of a streamed gRPC request. The gRPC library buffers an incomplete message without a time limit;
//! here it has a deadline and a largest size, and counts in the byte budget.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::HttpBody;
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tokio::time::Sleep;

use super::grpc;
use super::grpc::MESSAGE_PREFIX_BYTES;
use crate::failure::Failure;
use crate::limits::budget::{ByteBudget, Charge, SMALL_BYTES};
use crate::limits::deadlines::MESSAGE_WITHIN;

/// Checks the bytes of a message before it is decoded.
pub(super) type Check = fn(&[u8]) -> Result<(), &'static str>;

/// The limits of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageLimits {
    pub(super) bytes_max: usize,
    pub(super) check: Check,
}

/// Checks the complete messages at the beginning, and returns their length.
pub(super) fn complete_messages(bytes: &[u8], limits: MessageLimits) -> Result<usize, Failure> {
    let mut end = 0;
    while let Some((prefix, rest)) = bytes[end..].split_first_chunk::<MESSAGE_PREFIX_BYTES>() {
        let [_, length @ ..] = *prefix;
        let length = u32::from_be_bytes(length) as usize;
        if length > limits.bytes_max {
            return Err(Failure::TooLarge(format!("the message is larger than {} bytes", limits.bytes_max)));
        }
        let Some(message) = rest.get(..length) else { break };
        (limits.check)(message).map_err(|why| Failure::Invalid(format!("the message: {why}")))?;
        end += MESSAGE_PREFIX_BYTES + length;
    }
    Ok(end)
}

/// A request body that yields complete gRPC messages.
pub(super) struct ReassembledMessages<B> {
    body: Pin<Box<B>>,
    limits: MessageLimits,
    budget: ByteBudget,
    /// The incomplete message.
    buffer: BytesMut,
    /// Counts the buffer.
    charge: Charge,
    /// When the message must be complete.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B> ReassembledMessages<B> {
    pub(super) fn new(body: B, limits: MessageLimits, budget: ByteBudget) -> ReassembledMessages<B> {
        let charge = budget.begin_request();
        ReassembledMessages {
            body: Box::pin(body),
            limits,
            budget,
            buffer: BytesMut::new(),
            charge,
            deadline: None,
        }
    }

    /// Adds received bytes. Returns the messages that are complete now.
    fn take_in(&mut self, data: Bytes) -> Result<Bytes, Failure> {
        self.budget.arrivals().taken();
        if self.buffer.is_empty() && complete_messages(&data, self.limits)? == data.len() {
            return Ok(data);
        }
        self.buffer.extend_from_slice(&data);
        let whole = complete_messages(&self.buffer, self.limits)?;
        let whole = self.buffer.split_to(whole).freeze();
        if !whole.is_empty() {
            self.deadline = None;
            // The rest must not keep the memory of the returned messages alive.
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        self.charge.shrink(usize::MAX);
        match self.buffer.len() <= SMALL_BYTES {
            true => self.charge.grow(self.buffer.len()),
            false => self.budget.charge_request(&mut self.charge, self.buffer.len())?,
        }
        Ok(whole)
    }
}

impl<B> HttpBody for ReassembledMessages<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = &mut *self;
        let refuse = |failure| Poll::Ready(Some(Err(grpc::status(failure).into())));
        loop {
            let frame = match this.body.as_mut().poll_frame(context) {
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Pending if this.buffer.is_empty() => return Poll::Pending,
                Poll::Pending => {
                    let sleep = || Box::pin(tokio::time::sleep(MESSAGE_WITHIN));
                    ready!(this.deadline.get_or_insert_with(sleep).as_mut().poll(context));
                    let text = format!("the message did not arrive within {} s", MESSAGE_WITHIN.as_secs());
                    return refuse(Failure::Invalid(text));
                }
            };
            match frame.into_data().map(|data| this.take_in(data)) {
                Ok(Ok(whole)) if whole.is_empty() => {}
                Ok(Ok(whole)) => return Poll::Ready(Some(Ok(Frame::data(whole)))),
                Ok(Err(failure)) => return refuse(failure),
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// Streamed messages in pieces, for `crate::fuzz`: the same complete messages come out, whatever the pieces.
#[cfg(feature = "fuzz")]
pub(super) fn fuzz(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else { return };
    let limits = MessageLimits { bytes_max: 1 << 10, check: crate::session::decode_limits::check_frame };
    let reassemble = |piece: usize| {
        let nothing = http_body_util::Empty::<Bytes>::new();
        let mut reassembled = ReassembledMessages::new(nothing, limits, ByteBudget::standalone());
        let mut out = Vec::new();
        for part in bytes.chunks(piece.max(1)) {
            match reassembled.take_in(Bytes::copy_from_slice(part)) {
                Ok(whole) => out.extend_from_slice(&whole),
                Err(_) => return (out, true),
            }
        }
        (out, false)
    };
    let ((one, one_refused), (other, other_refused)) =
        (reassemble(usize::from(*piece)), reassemble(bytes.len()));
    assert_eq!(one_refused, other_refused, "the result depends on the pieces");
    assert!(one_refused || one == other, "the result depends on the pieces");
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    const LIMITS: MessageLimits = MessageLimits { bytes_max: 1 << 20, check: |_| Ok(()) };

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend((length as u32).to_be_bytes());
        bytes.extend(vec![7; length]);
        bytes
    }

    fn body(
        pieces: impl IntoIterator<Item = Vec<u8>>,
    ) -> impl HttpBody<Data = Bytes, Error = axum::BoxError> {
        let pieces: VecDeque<_> =
            pieces.into_iter().map(|piece| Ok(Frame::data(Bytes::from(piece)))).collect();
        StreamBody::new(futures_util::StreamExt::chain(
            futures_util::stream::iter(pieces),
            futures_util::stream::pending(),
        ))
    }

    #[tokio::test]
    async fn messages_come_out_complete_whatever_the_pieces() {
        let all = [message(3), message(0), message(70_000), message(5)].concat();
        for piece in [1, 4, 1_000, all.len()] {
            let pieces: Vec<_> = all.chunks(piece).map(<[u8]>::to_vec).collect();
            let mut reassembled = ReassembledMessages::new(body(pieces), LIMITS, ByteBudget::standalone());
            let mut out = Vec::new();
            while out.len() < all.len() {
                let data = reassembled.frame().await.unwrap().unwrap().into_data().unwrap();
                assert_eq!(complete_messages(&data, LIMITS).unwrap(), data.len());
                out.extend(data);
            }
            assert_eq!(out, all);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_message_is_counted_and_has_a_deadline() {
        let budget = ByteBudget::standalone();
        let begun = message(1 << 20)[..500_000].to_vec();
        let mut reassembled = ReassembledMessages::new(body([begun]), LIMITS, budget.clone());
        let waits = tokio::time::timeout(MESSAGE_WITHIN / 2, reassembled.frame()).await;
        assert!(waits.is_err());
        assert_eq!(budget.used(), 500_000);
        let refused = reassembled.frame().await.unwrap().unwrap_err();
        assert!(refused.to_string().contains("did not arrive"), "{refused}");
        drop(reassembled);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn too_large_message_is_refused_before_it_has_arrived() {
        let begun = message((1 << 20) + 1)[..10].to_vec();
        let mut reassembled = ReassembledMessages::new(body([begun]), LIMITS, ByteBudget::standalone());
        assert!(reassembled.frame().await.unwrap().is_err());
    }

    #[tokio::test]
    async fn large_messages_above_the_budget_are_refused_and_small_ones_are_not() {
        let budget = ByteBudget::standalone();
        let _answers = budget.charge(crate::limits::budget::CONNECTION_BYTES_MAX);
        let mut small =
            ReassembledMessages::new(body([vec![0], message(100)[1..].to_vec()]), LIMITS, budget.clone());
        assert!(small.frame().await.unwrap().is_ok());
        let begun = message(200_000)[..100_000].to_vec();
        let mut large = ReassembledMessages::new(body([begun]), LIMITS, budget.clone());
        assert!(large.frame().await.unwrap().is_err());
    }
}
