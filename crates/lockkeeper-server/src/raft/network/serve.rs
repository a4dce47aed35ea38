//! The other end of a member's connection: its requests are handled beside each other, its appends in their order.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, FuturesUnordered};
use futures_util::{FutureExt, StreamExt};
use lockkeeper_proto::peer::peer_answer::Kind as AnswerKind;
use lockkeeper_proto::peer::peer_request::Kind;
use lockkeeper_proto::{net, peer};
use openraft::raft::{AppendEntriesResponse, StreamAppendError};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::direct::{Direct, Outgoing};
use super::link::{AppendResult, WINDOW_BYTES, WINDOW_REQUESTS};
use super::service::{Inner, TransferLeaderRequest, VoteRequest};
use super::{MESSAGE_BYTES_MAX, codec};
use crate::listen::FIRST_BYTES_WITHIN;
use crate::raft::types::{TypeConfig, Vote};

type AppendEntriesRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;

/// Heartbeats, votes and the like that may be handled at the same time. A member that sends more gets refusals.
const CALLS_MAX: usize = 256;
/// Most answers that go in one packet.
const ANSWERS_AT_ONCE: usize = 64;

/// Serves one connection of a member until it ends.
pub(super) async fn serve(inner: Arc<Inner>, stream: net::Stream) -> io::Result<()> {
    let (mut incoming, mut outgoing) = Direct::accept(stream).await?;
    // Until its first request it is anybody.
    let first = timeout(FIRST_BYTES_WITHIN, incoming.next::<peer::PeerRequest>()).await;
    let Ok(Ok(Some(first))) = first else { return Ok(()) };
    if let Err(status) = inner.admit(first.header.as_ref()) {
        return refuse_connection(&mut outgoing, &status).await;
    }
    let from = first.header.as_ref().map_or(0, |header| header.from);
    inner.counters.accepted.inc();
    let here = inner.succession.arrived(from);
    let mut connection =
        Connection { inner: inner.clone(), from, calls: FuturesUnordered::new(), stream: None };
    let mut next = Some(first);
    let ended = loop {
        if let Some(request) = next.take()
            && let Err(status) = connection.take(request, &mut outgoing)
        {
            break refuse_connection(&mut outgoing, &status).await;
        }
        let has_room = outgoing.is_written();
        let Connection { calls, stream, .. } = &mut connection;
        tokio::select! {
            biased;
            written = outgoing.write(), if !has_room => if let Err(error) = written { break Err(error) },
            answers = appended(stream), if has_room => answers.iter().for_each(|answer| outgoing.push(answer)),
            Some(answer) = calls.next(), if has_room => outgoing.push(&answer),
            request = incoming.next::<peer::PeerRequest>() => match request {
                Ok(Some(request)) => next = Some(request),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            },
        }
    };
    drop(here);
    inner.succession.left(from);
    ended
}

/// Tells the member why its connection ends.
async fn refuse_connection(outgoing: &mut Outgoing, status: &Status) -> io::Result<()> {
    outgoing.push(&refusal(0, status));
    outgoing.write().await
}

/// What is under way on one connection.
struct Connection {
    inner: Arc<Inner>,
    from: u64,
    calls: FuturesUnordered<BoxFuture<'static, peer::PeerAnswer>>,
    stream: Option<InboundStream>,
}

impl Connection {
    /// Begins to handle a request. Fails if the connection cannot go on.
    fn take(&mut self, request: peer::PeerRequest, outgoing: &mut Outgoing) -> Result<(), Status> {
        let peer::PeerRequest { id, kind, .. } = request;
        let inner = self.inner.clone();
        let call = match kind {
            Some(Kind::Append(append)) => return self.append(id, append, outgoing),
            Some(Kind::Ping(ping)) => {
                outgoing.push(&answer(id, AnswerKind::Pong(ping)));
                return Ok(());
            }
            Some(Kind::Goodbye(vote)) => {
                let vote: Vote = codec::decode(&vote).map_err(Status::invalid_argument)?;
                inner.believe(vote.leader_id.term)?;
                inner.succession.said_goodbye(self.from, vote);
                return Ok(());
            }
            Some(Kind::Heartbeat(append)) => heartbeat(inner, append).boxed(),
            Some(Kind::Vote(body)) => vote(inner, self.from, body, false).boxed(),
            Some(Kind::PreVote(body)) => vote(inner, self.from, body, true).boxed(),
            Some(Kind::TransferLeader(body)) => transfer_leader(inner, body).boxed(),
            None => return Err(Status::invalid_argument("the request is empty")),
        };
        if self.calls.len() >= CALLS_MAX {
            outgoing.push(&refusal(id, &Status::resource_exhausted("too many requests at the same time")));
            return Ok(());
        }
        let answered = call.map(move |result| match result {
            Ok(kind) => answer(id, kind),
            Err(status) => refusal(id, &status),
        });
        self.calls.push(answered.boxed());
        Ok(())
    }

    fn append(
        &mut self,
        id: u64,
        append: peer::AppendRequest,
        outgoing: &mut Outgoing,
    ) -> Result<(), Status> {
        let current = self.stream.as_ref().map_or(0, |stream| stream.number);
        if append.stream < current {
            outgoing.push(&refusal(id, &Status::aborted("a later stream has replaced this one")));
            return Ok(());
        }
        let bytes = append.body.len();
        let request = self.inner.open_append(&append.body)?;
        self.inner.heard.now();
        if append.stream > current {
            self.stream = Some(InboundStream::new(&self.inner, append.stream));
        }
        match &self.stream {
            Some(stream) => stream.take(id, request, bytes),
            None => Err(Status::invalid_argument("the append belongs to no stream")),
        }
    }
}

/// The next answers to appends. Cancel-safe. Pending while there is no stream.
async fn appended(stream: &mut Option<InboundStream>) -> Vec<peer::PeerAnswer> {
    if let Some(stream) = stream
        && let Some(answers) = stream.answers.next().await
    {
        return answers;
    }
    // Raft ends a stream behind an answer that the leader cannot go on from: it opens another one.
    std::future::pending().await
}

/// The appends of one stream, on their way into raft.
struct InboundStream {
    number: u64,
    requests: mpsc::Sender<(u64, AppendEntriesRequest, usize)>,
    queued_bytes: Arc<AtomicUsize>,
    answers: BoxStream<'static, Vec<peer::PeerAnswer>>,
}

impl InboundStream {
    fn new(inner: &Inner, number: u64) -> InboundStream {
        let (requests, queued) = mpsc::channel(WINDOW_REQUESTS);
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        // The ids of the requests that raft has taken, which it answers in order.
        let ids = Arc::new(Mutex::new(VecDeque::new()));
        let taken = {
            let (ids, queued_bytes) = (ids.clone(), queued_bytes.clone());
            ReceiverStream::new(queued).map(move |(id, request, bytes)| {
                ids.lock().unwrap_or_else(PoisonError::into_inner).push_back(id);
                queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
                request
            })
        };
        let promise_ms = inner.promise_ms();
        let answers = inner.raft.stream_append(taken).map(move |result| {
            let id = ids.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or_default();
            let result = result.map_err(stopped).and_then(|result| append_answer(&result, promise_ms));
            match result {
                Ok(kind) => answer(id, kind),
                Err(status) => refusal(id, &status),
            }
        });
        InboundStream {
            number,
            requests,
            queued_bytes,
            answers: answers.ready_chunks(ANSWERS_AT_ONCE).boxed(),
        }
    }

    fn take(&self, id: u64, request: AppendEntriesRequest, bytes: usize) -> Result<(), Status> {
        let queued = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        if queued > WINDOW_BYTES + MESSAGE_BYTES_MAX {
            return Err(Status::resource_exhausted("the member sends more than it may"));
        }
        match self.requests.try_send((id, request, bytes)) {
            // After its end nobody reads it: the leader learns of the end by the last answer.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(Status::resource_exhausted("the member sends more than it may"))
            }
        }
    }
}

async fn heartbeat(inner: Arc<Inner>, append: peer::AppendRequest) -> Result<AnswerKind, Status> {
    let request = inner.open_append(&append.body)?;
    inner.heard.now();
    let previous = request.prev_log_id;
    let last = request.entries.last().map(|entry| entry.log_id).or(previous);
    let result: AppendResult = match inner.raft.append_entries(request).await.map_err(stopped)? {
        AppendEntriesResponse::Success => Ok(last),
        AppendEntriesResponse::PartialSuccess(through) => Ok(through),
        AppendEntriesResponse::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote)),
        AppendEntriesResponse::Conflict => match previous {
            Some(previous) => Err(StreamAppendError::Conflict(previous)),
            None => return Err(Status::internal("nothing cannot conflict")),
        },
    };
    append_answer(&result, inner.promise_ms())
}

async fn vote(inner: Arc<Inner>, from: u64, body: Bytes, is_pre_vote: bool) -> Result<AnswerKind, Status> {
    let request: VoteRequest = codec::decode(&body).map_err(Status::invalid_argument)?;
    // It may have been removed since it came.
    inner.must_be_member(from)?;
    inner.may_vote(&request)?;
    let answered = match is_pre_vote {
        true => inner.raft.pre_vote(request).await,
        false => inner.raft.vote(request).await,
    };
    encoded(&answered.map_err(stopped)?)
}

async fn transfer_leader(inner: Arc<Inner>, body: Bytes) -> Result<AnswerKind, Status> {
    let request: TransferLeaderRequest = codec::decode(&body).map_err(Status::invalid_argument)?;
    inner.believe(request.from_leader().leader_id.term)?;
    encoded(&inner.raft.handle_transfer_leader(request).await.map_err(stopped)?)
}

fn encoded<T: Serialize>(message: &T) -> Result<AnswerKind, Status> {
    codec::encode(message).map(AnswerKind::Body).map_err(Status::internal)
}

fn append_answer(result: &AppendResult, promise_ms: u64) -> Result<AnswerKind, Status> {
    let body = codec::encode(result).map_err(Status::internal)?;
    // A refused leader is promised nothing.
    let promise_ms = if result.is_ok() { promise_ms } else { 0 };
    Ok(AnswerKind::Append(peer::AppendAnswer { body, promise_ms }))
}

fn answer(id: u64, kind: AnswerKind) -> peer::PeerAnswer {
    peer::PeerAnswer { id, kind: Some(kind), ..Default::default() }
}

fn refusal(id: u64, status: &Status) -> peer::PeerAnswer {
    let refused = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    peer::PeerAnswer { id, kind: None, refused: refused.to_owned(), code: status.code() as i32 }
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(error.to_string())
}
