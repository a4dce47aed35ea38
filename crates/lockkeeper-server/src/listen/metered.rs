//! Bodies of HTTP requests and answers, counted in the byte budget of their connection and identity (`crate::limits::budget`).
//!
//! The answer to a unary call is complete before any of it is sent, and is kept here until the client reads it. It is passed
//! to hyper in small pieces, each a copy, so that a piece in hyper's buffer does not keep the whole answer alive.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use tonic::Status;

use super::message_deadline::MessageDeadline;
use crate::failure::Failure;
use crate::limits::budget::{ByteBudget, Charge};

/// Size of a piece passed to hyper.
const PIECE_BYTES: usize = 16 << 10;

/// Counts the body of an answer until it is sent. Bodies of unknown length are streams, which are produced as the client
/// reads.
pub(super) async fn meter(response: Response, budget: &ByteBudget) -> Response {
    match response.body().size_hint().exact() {
        Some(_) => meter_whole(response, budget).await,
        None => meter_stream(response, budget),
    }
}

/// Counts each event of a stream until it is sent.
pub(super) fn meter_stream(response: Response, budget: &ByteBudget) -> Response {
    let charge = budget.charge(0);
    response.map(|body| Body::new(MeteredStream { body, event: Bytes::new(), charge }))
}

/// Counts the answer to a unary gRPC call, whose length is unknown before it is encoded.
pub(super) async fn meter_whole(response: Response, budget: &ByteBudget) -> Response {
    let (parts, body) = response.into_parts();
    let Ok(collected) = body.collect().await else { return Response::from_parts(parts, Body::empty()) };
    let trailers = collected.trailers().cloned();
    let rest = collected.to_bytes();
    let charge = budget.charge(rest.len());
    Response::from_parts(parts, Body::new(MeteredAnswer { rest, trailers, charge }))
}

struct MeteredAnswer {
    rest: Bytes,
    trailers: Option<HeaderMap>,
    charge: Charge,
}

impl HttpBody for MeteredAnswer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let this = &mut *self;
        Poll::Ready(Some(Ok(next_piece(&mut this.rest, &mut this.charge))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// Takes the next piece of the rest.
fn next_piece(rest: &mut Bytes, charge: &mut Charge) -> Frame<Bytes> {
    let count = rest.len().min(PIECE_BYTES);
    let piece = Bytes::copy_from_slice(&rest.split_to(count));
    charge.shrink(count);
    Frame::data(piece)
}

struct MeteredStream {
    body: Body,
    /// The rest of the last event.
    event: Bytes,
    charge: Charge,
}

impl HttpBody for MeteredStream {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if this.event.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)).transpose()?.map(Frame::into_data) {
                Some(Ok(event)) if event.len() > PIECE_BYTES => {
                    this.charge.grow(event.len());
                    this.event = event;
                }
                Some(Ok(event)) => return Poll::Ready(Some(Ok(Frame::data(event)))),
                Some(Err(trailers)) => return Poll::Ready(Some(Ok(trailers))),
                None => return Poll::Ready(None),
            }
        }
        Poll::Ready(Some(Ok(next_piece(&mut this.event, &mut this.charge))))
    }

    fn is_end_stream(&self) -> bool {
        self.event.is_empty() && self.body.is_end_stream()
    }
}

/// Reads the message of a unary gRPC call within a deadline and the budget.
pub(super) async fn collect_message<B>(
    body: B,
    budget: &ByteBudget,
    bytes_max: usize,
) -> Result<(Full<Bytes>, Charge), Failure>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<axum::BoxError>,
{
    let (mut body, mut charge, mut whole) = (MessageDeadline::new(body), budget.charge(0), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error.downcast_ref::<Status>() {
            Some(status) => Failure::Invalid(status.message().to_owned()),
            None => Failure::Invalid("the message was incomplete: nothing was done".to_owned()),
        })?;
        let Ok(data) = frame.into_data() else { break };
        if whole.len() + data.len() > bytes_max {
            return Err(Failure::TooLarge(format!("the message is larger than {bytes_max} bytes")));
        }
        budget.charge_request(&mut charge, data.len())?;
        whole.extend_from_slice(&data);
    }
    Ok((Full::new(whole.freeze()), charge))
}

/// The body of another request, counted while it is read.
pub(super) struct MeteredRequest<B> {
    body: Pin<Box<B>>,
    budget: ByteBudget,
    charge: Charge,
}

impl<B> MeteredRequest<B> {
    pub(super) fn new(body: B, budget: ByteBudget) -> MeteredRequest<B> {
        MeteredRequest { body: Box::pin(body), charge: budget.charge(0), budget }
    }
}

impl<B> HttpBody for MeteredRequest<B>
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
        let Some(frame) = ready!(this.body.as_mut().poll_frame(context)) else { return Poll::Ready(None) };
        let frame = frame.map_err(Into::into);
        if let Some(data) = frame.as_ref().ok().and_then(Frame::data_ref)
            && let Err(failure) = this.budget.charge_request(&mut this.charge, data.len())
        {
            return Poll::Ready(Some(Err(failure.into())));
        }
        Poll::Ready(Some(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answer_is_counted_until_its_pieces_are_passed_on() {
        let budget = ByteBudget::standalone();
        let large = vec![7; crate::limits::budget::CONNECTION_BYTES_MAX];
        let response = meter(Response::new(Body::from(large.clone())), &budget).await;
        assert!(budget.check_read().is_err(), "it fills the budget of its connection");
        let mut body = response.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), PIECE_BYTES);
        assert!(budget.check_read().is_ok());
        let rest = body.collect().await.unwrap().to_bytes();
        assert_eq!(rest.len() + first.len(), large.len());
    }

    #[tokio::test]
    async fn request_above_the_budget_is_refused() {
        let budget = ByteBudget::standalone();
        let _answers = budget.charge(crate::limits::budget::CONNECTION_BYTES_MAX - 10);
        let small = collect_message(Full::new(Bytes::from(vec![0; 10])), &budget, 100).await;
        assert!(small.is_ok());
        drop(small);
        let larger = collect_message(Full::new(Bytes::from(vec![0; 11])), &budget, 100).await;
        assert_eq!(larger.err().map(|failure| failure.code()), Some(lockkeeper_api::Code::Limit));
        let largest = collect_message(Full::new(Bytes::from(vec![0; 101])), &budget, 100).await;
        assert_eq!(largest.err().map(|failure| failure.code()), Some(lockkeeper_api::Code::TooLarge));
    }
}
