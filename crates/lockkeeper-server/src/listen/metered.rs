//! Bodies of HTTP requests and answers, counted in the byte budget of their connection and identity (`crate::limits::budget`).
//!
//! An answer is passed to hyper in small pieces, each a copy, so that a piece in hyper's buffer does not keep the whole answer
//! alive. Hyper takes a piece before the client's window has room for it, and takes the next piece when HTTP/2 has sent almost
//! all of the earlier ones. A piece therefore counts until the piece after the next one is taken, and the last piece of an
//! answer is small: then little of an answer that hyper has taken to its end is unsent and no longer counted.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use tonic::Status;

use super::grpc::MESSAGE_PREFIX_BYTES;
use super::message_deadline::MessageDeadline;
use super::reassembly::{MessageLimits, complete_messages};
use crate::failure::Failure;
use crate::limits::budget::{ByteBudget, Charge, ReflectionSeat};

/// Size of a piece passed to hyper.
const PIECE_BYTES: usize = 16 << 10;
/// Largest last piece.
const LAST_PIECE_BYTES_MAX: usize = 1 << 10;
/// How much of an answer is collected to count it as a whole. The rest of a larger one is passed on as it comes.
const WHOLE_ANSWER_BYTES_MAX: usize = 8 << 20;

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
    let pieces = Pieces::new(Bytes::new(), budget.charge(0));
    response.map(|body| Body::new(MeteredStream { body, pieces, _seat: None }))
}

/// Counts the answers of a stream of reflection, which keeps its seat until it ends.
pub(super) fn meter_reflection(response: Response, budget: &ByteBudget, seat: ReflectionSeat) -> Response {
    let pieces = Pieces::new(Bytes::new(), budget.charge(0));
    response.map(|body| Body::new(MeteredStream { body, pieces, _seat: Some(seat) }))
}

/// Counts the answer to a unary gRPC call, whose length is unknown before it is encoded. Only for answers that end: all of it is
/// awaited, up to [`WHOLE_ANSWER_BYTES_MAX`].
pub(super) async fn meter_whole(response: Response, budget: &ByteBudget) -> Response {
    let (parts, mut body) = response.into_parts();
    let (mut charge, mut frames, mut trailers) = (budget.charge(0), Vec::new(), None);
    let mut length = 0;
    while length < WHOLE_ANSWER_BYTES_MAX {
        match body.frame().await.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => {
                length += data.len();
                charge.grow(data.len());
                frames.push(data);
            }
            Some(Ok(Err(rest))) => trailers = rest.into_trailers().ok(),
            Some(Err(_)) => return Response::from_parts(parts, Body::empty()),
            None => {
                let pieces = Pieces::new(joined(frames), charge);
                return Response::from_parts(parts, Body::new(MeteredAnswer { pieces, trailers }));
            }
        }
    }
    let pieces = Pieces::new(joined(frames), charge);
    Response::from_parts(parts, Body::new(MeteredStream { body, pieces, _seat: None }))
}

/// Joins frames. Most answers have one, which is not copied.
fn joined(mut frames: Vec<Bytes>) -> Bytes {
    match frames.len() {
        0 | 1 => frames.pop().unwrap_or_default(),
        _ => frames.concat().into(),
    }
}

/// What hyper has not taken yet, and a count of what it may not have sent yet.
struct Pieces {
    rest: Bytes,
    /// Sizes of the last two pieces that hyper has taken, the older one first.
    taken: [usize; 2],
    /// Counts both.
    charge: Charge,
}

impl Pieces {
    fn new(rest: Bytes, charge: Charge) -> Pieces {
        Pieces { rest, taken: [0; 2], charge }
    }

    /// Returns the next piece. The piece before the last one is sent.
    fn next(&mut self) -> Frame<Bytes> {
        let [sent, last] = self.taken;
        self.charge.shrink(sent);
        let count = match self.rest.len() {
            // Leaves a byte for a piece of its own.
            length if length > LAST_PIECE_BYTES_MAX && length <= PIECE_BYTES => length - 1,
            length => length.min(PIECE_BYTES),
        };
        self.taken = [last, count];
        Frame::data(Bytes::copy_from_slice(&self.rest.split_to(count)))
    }

    /// Adds an event, which counts from now on.
    fn add(&mut self, event: Bytes) {
        self.charge.grow(event.len());
        self.rest = event;
    }

    /// Notes that hyper waits for more: all but a small last piece is sent.
    fn settle(&mut self) {
        self.charge.shrink(self.taken.iter().sum());
        self.taken = [0; 2];
    }
}

struct MeteredAnswer {
    pieces: Pieces,
    trailers: Option<HeaderMap>,
}

impl HttpBody for MeteredAnswer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.pieces.rest.is_empty() {
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        Poll::Ready(Some(Ok(self.pieces.next())))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.rest.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.pieces.rest.len() as u64)
    }
}

struct MeteredStream {
    body: Body,
    /// The last event.
    pieces: Pieces,
    _seat: Option<ReflectionSeat>,
}

impl HttpBody for MeteredStream {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if this.pieces.rest.is_empty() {
            let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
                this.pieces.settle();
                return Poll::Pending;
            };
            match frame.transpose()?.map(Frame::into_data) {
                Some(Ok(event)) => this.pieces.add(event),
                Some(Err(trailers)) => return Poll::Ready(Some(Ok(trailers))),
                None => return Poll::Ready(None),
            }
        }
        Poll::Ready(Some(Ok(this.pieces.next())))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.rest.is_empty() && self.body.is_end_stream()
    }
}

/// Reads the message of a unary gRPC call within a deadline and the budget, and checks it before it is decoded.
pub(super) async fn collect_message<B>(
    body: B,
    budget: &ByteBudget,
    limits: MessageLimits,
) -> Result<(Full<Bytes>, Charge), Failure>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<axum::BoxError>,
{
    let bytes_max = limits.bytes_max + MESSAGE_PREFIX_BYTES;
    let (mut body, mut charge) = (MessageDeadline::new(body), budget.begin_request());
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error.downcast_ref::<Status>() {
            Some(status) => Failure::Invalid(status.message().to_owned()),
            None => Failure::Invalid("the message was incomplete: nothing was done".to_owned()),
        })?;
        let Ok(data) = frame.into_data() else { break };
        budget.arrivals().taken();
        if whole.len() + data.len() > bytes_max {
            return Err(Failure::TooLarge(format!("the message is larger than {bytes_max} bytes")));
        }
        budget.charge_request(&mut charge, data.len())?;
        whole.extend_from_slice(&data);
    }
    complete_messages(&whole, limits)?;
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
        MeteredRequest { body: Box::pin(body), charge: budget.begin_request(), budget }
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
        if let Some(data) = frame.as_ref().ok().and_then(Frame::data_ref) {
            this.budget.arrivals().taken();
            if let Err(failure) = this.budget.charge_request(&mut this.charge, data.len()) {
                return Poll::Ready(Some(Err(failure.into())));
            }
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
    use crate::limits::budget::CONNECTION_BYTES_MAX;

    #[tokio::test]
    async fn answer_is_counted_until_its_pieces_are_passed_on() {
        let budget = ByteBudget::standalone();
        let large = vec![7; CONNECTION_BYTES_MAX];
        let response = meter(Response::new(Body::from(large.clone())), &budget).await;
        assert!(budget.check_read().is_err(), "it fills the budget of its connection");
        let mut body = response.into_body();
        for number in 0..3 {
            assert!(budget.check_read().is_err(), "of {number} pieces none is known to be sent");
            assert_eq!(next_piece(&mut body).await.len(), PIECE_BYTES);
        }
        assert!(budget.check_read().is_ok());
        let rest = body.collect().await.unwrap().to_bytes();
        assert_eq!(rest.len() + 3 * PIECE_BYTES, large.len());
        assert_eq!(budget.used(), 0);
    }

    async fn next_piece(body: &mut Body) -> Bytes {
        body.frame().await.unwrap().unwrap().into_data().unwrap()
    }

    /// Hyper takes a piece before there is room for it, so a small answer must not stop counting when it is taken.
    #[tokio::test]
    async fn small_answer_counts_until_its_last_byte_is_taken() {
        let budget = ByteBudget::standalone();
        for length in [LAST_PIECE_BYTES_MAX + 1, PIECE_BYTES, PIECE_BYTES + 1] {
            let whole = Response::new(Body::from(vec![7; length]));
            let mut body = meter(whole, &budget).await.into_body();
            let first = next_piece(&mut body).await;
            assert_eq!(budget.used(), length);
            assert!(!body.is_end_stream() && first.len() < length);
            let last = next_piece(&mut body).await;
            assert_eq!((first.len() + last.len(), last.len()), (length, 1));
            assert_eq!(budget.used(), length, "the first piece may be unsent");
            drop(body);
            assert_eq!(budget.used(), 0);
        }
    }

    #[tokio::test]
    async fn events_of_a_stream_count_until_more_are_asked_for() {
        let budget = ByteBudget::standalone();
        let (sender, events) = tokio::sync::mpsc::channel::<std::io::Result<Bytes>>(8);
        let events = Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(events));
        let mut body = meter_stream(Response::new(events), &budget).into_body();
        for length in [10, 5_000] {
            sender.send(Ok(vec![7; length].into())).await.unwrap();
        }
        assert_eq!(next_piece(&mut body).await.len(), 10);
        assert_eq!(budget.used(), 10, "small events count, too");
        assert_eq!(next_piece(&mut body).await.len(), 4_999);
        assert_eq!(next_piece(&mut body).await.len(), 1);
        assert_eq!(budget.used(), 5_000);
        let mut waiting = std::pin::pin!(body.frame());
        assert!(futures_util::poll!(&mut waiting).is_pending());
        assert_eq!(budget.used(), 0, "an idle stream counts nothing");
    }

    /// Awaiting the end of an endless body would fill the memory.
    #[tokio::test]
    async fn endless_answer_is_not_collected() {
        let budget = ByteBudget::standalone();
        let chunk = Bytes::from(vec![7; 1 << 20]);
        let endless = futures_util::stream::repeat_with(move || std::io::Result::Ok(chunk.clone()));
        let response = Response::new(Body::from_stream(endless));
        let limited = meter_whole(response, &budget);
        let mut body = limited.await.into_body();
        assert_eq!(budget.used(), WHOLE_ANSWER_BYTES_MAX);
        let mut passed = 0;
        while passed < 2 * WHOLE_ANSWER_BYTES_MAX {
            passed += next_piece(&mut body).await.len();
        }
        assert!(budget.used() < 2 << 20, "{}", budget.used());
    }

    #[tokio::test]
    async fn trailers_follow_a_whole_answer() {
        let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
        let frames = [Frame::data(Bytes::from_static(b"answer")), Frame::trailers(trailers.clone())];
        let frames = frames.into_iter().map(std::io::Result::Ok);
        let body = Body::new(http_body_util::StreamBody::new(futures_util::stream::iter(frames)));
        let metered = meter_whole(Response::new(body), &ByteBudget::standalone()).await;
        let collected = metered.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers(), Some(&trailers));
        assert_eq!(collected.to_bytes(), "answer");
    }

    #[tokio::test]
    async fn request_above_the_budget_is_refused() {
        let limits = MessageLimits { bytes_max: 95, check: |_| Ok(()) };
        let budget = ByteBudget::standalone();
        let _answers = budget.charge(CONNECTION_BYTES_MAX - 10);
        let small = collect_message(Full::new(Bytes::from(vec![0; 10])), &budget, limits).await;
        assert!(small.is_ok());
        drop(small);
        let larger = collect_message(Full::new(Bytes::from(vec![0; 11])), &budget, limits).await;
        assert_eq!(larger.err().map(|failure| failure.code()), Some(lockkeeper_api::Code::Limit));
        let largest = collect_message(Full::new(Bytes::from(vec![0; 101])), &budget, limits).await;
        assert_eq!(largest.err().map(|failure| failure.code()), Some(lockkeeper_api::Code::TooLarge));
    }
}
