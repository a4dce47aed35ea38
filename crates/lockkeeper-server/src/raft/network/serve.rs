//! The server side of a member's connection: requests are handled concurrently, appends in order.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, FuturesUnordered};
use futures_util::{FutureExt, StreamExt};
use lockkeeper_api::peer;
use lockkeeper_api::peer::peer_answer::Kind as AnswerKind;
use lockkeeper_api::peer::peer_request::Kind;
use lockkeeper_net::net;
use openraft::raft::{AppendEntriesResponse, StreamAppendError};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::decode::AppendEntriesRequest;
use super::direct::{Direct, Incoming, Outgoing};
use super::link::{AppendResult, WINDOW_BYTES, WINDOW_REQUESTS};
use super::service::{Inner, TransferLeaderRequest, VoteRequest};
use super::{MESSAGE_BYTES_MAX, codec, format};
use crate::formation::versions::Versions;
use crate::limits::deadlines::FIRST_BYTES_WITHIN;
use crate::raft::agreement::{Agreement, TableHash};
use crate::raft::disk_space;
use crate::raft::log::SpaceWatch;
use crate::raft::types::Vote;

/// Maximum number of heartbeats, votes and similar calls that are handled concurrently. More are refused.
const CALLS_MAX: usize = 256;
/// Maximum number of answers that are written at once.
const ANSWERS_AT_ONCE: usize = 64;

/// A connection whose first request has proved that its sender is a member.
pub(crate) struct Admitted {
    incoming: Incoming,
    outgoing: Outgoing,
    first: peer::PeerRequest,
}

/// Waits for the first request and checks its sender. `None` if the connection must be closed.
pub(super) async fn admit(inner: &Inner, stream: net::Stream) -> io::Result<Option<Admitted>> {
    // Until its first request the sender is unknown, and gets little time and memory.
    let first = async {
        let (mut incoming, outgoing) = Direct::accept(stream).await?;
        let first = incoming.next::<peer::PeerRequest>().await?;
        io::Result::Ok(first.map(|first| (incoming, outgoing, first)))
    };
    let Ok(first) = timeout(FIRST_BYTES_WITHIN, first).await else { return Ok(None) };
    let Some((mut incoming, mut outgoing, first)) = first? else { return Ok(None) };
    if let Err(status) = inner.admit(first.header.as_ref()) {
        // A sender that does not read the refusal does not block this task.
        let told = timeout(FIRST_BYTES_WITHIN, refuse_connection(&mut outgoing, &status)).await;
        return told.unwrap_or(Ok(())).map(|()| None);
    }
    incoming.set_bytes_max(MESSAGE_BYTES_MAX);
    Ok(Some(Admitted { incoming, outgoing, first }))
}

/// Serves one connection of a member until it ends.
pub(super) async fn serve(inner: Arc<Inner>, admitted: Admitted) -> io::Result<()> {
    let Admitted { mut incoming, mut outgoing, first } = admitted;
    let from = first.header.as_ref().map_or(0, |header| header.from);
    inner.counters.accepted.inc();
    let open = inner.election_trigger.connection_opened(from);
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
            answers = next_append_answers(stream), if has_room => answers.iter().for_each(|answer| outgoing.push(answer)),
            Some(answer) = calls.next(), if has_room => outgoing.push(&answer),
            request = incoming.next::<peer::PeerRequest>() => match request {
                Ok(Some(request)) => next = Some(request),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            },
        }
    };
    drop(open);
    inner.election_trigger.connection_closed(from);
    ended
}

/// Sends the reason for which the connection is closed.
async fn refuse_connection(outgoing: &mut Outgoing, status: &Status) -> io::Result<()> {
    outgoing.push(&refusal(0, status));
    outgoing.write().await
}

/// The fields that an answer copies from its request.
#[derive(Debug, Clone, Copy, Default)]
struct Tag {
    id: u64,
    format: u32,
}

/// Requests in progress on one connection.
struct Connection {
    inner: Arc<Inner>,
    from: u64,
    calls: FuturesUnordered<BoxFuture<'static, peer::PeerAnswer>>,
    stream: Option<InboundStream>,
}

impl Connection {
    /// Starts handling a request. Fails if the connection must be closed.
    fn take(&mut self, request: peer::PeerRequest, outgoing: &mut Outgoing) -> Result<(), Status> {
        let peer::PeerRequest { id, mut kind, format, .. } = request;
        let inner = self.inner.clone();
        // The sender may have been removed since it connected.
        inner.check_member(self.from)?;
        inner.check_format(format)?;
        let tag = Tag { id, format };
        if let Some(kind) = &mut kind {
            format::unwrap_request(format, kind).map_err(Status::invalid_argument)?;
        }
        let call = match kind {
            Some(Kind::Append(append)) => return self.append(tag, append, outgoing),
            Some(Kind::Ping(_)) => {
                let Versions { format_min, format_max, .. } = inner.versions;
                outgoing.push(&answer(tag, AnswerKind::Pong(peer::Pong { format_min, format_max })));
                return Ok(());
            }
            Some(Kind::Goodbye(vote)) => {
                let vote: Vote = inner.decode(&vote)?;
                inner.election_trigger.leader_resigned(self.from, vote);
                return Ok(());
            }
            Some(Kind::Heartbeat(append)) => heartbeat(inner, self.from, append).boxed(),
            Some(Kind::Vote(body)) => vote(inner, body, false).boxed(),
            Some(Kind::PreVote(body)) => vote(inner, body, true).boxed(),
            Some(Kind::TransferLeader(body)) => transfer_leader(inner, body).boxed(),
            None => return Err(Status::invalid_argument("the request is empty")),
        };
        if self.calls.len() >= CALLS_MAX {
            outgoing.push(&refusal(id, &Status::resource_exhausted("too many concurrent requests")));
            return Ok(());
        }
        let answered = call.map(move |result| match result {
            Ok(kind) => answer(tag, kind),
            Err(status) => refusal(id, &status),
        });
        self.calls.push(answered.boxed());
        Ok(())
    }

    fn append(
        &mut self,
        tag: Tag,
        append: peer::AppendRequest,
        outgoing: &mut Outgoing,
    ) -> Result<(), Status> {
        let current = self.stream.as_ref().map_or(0, |stream| stream.number);
        if append.stream < current {
            outgoing.push(&refusal(tag.id, &Status::aborted("a later stream has replaced this one")));
            return Ok(());
        }
        let bytes = append.body.len();
        let request = self.inner.parse_append(&append)?;
        self.inner.note_leader(self.from);
        if !request.entries.is_empty()
            && let Some(full) = self.inner.lacks_room(self.unanswered_bytes(), bytes)
        {
            outgoing.push(&refusal(tag.id, &full));
            return Ok(());
        }
        if append.stream > current {
            self.stream = Some(InboundStream::new(&self.inner, append.stream));
        }
        match &self.stream {
            Some(stream) => stream.take(tag, request, bytes),
            None => Err(Status::invalid_argument("the append belongs to no stream")),
        }
    }

    /// Returns the size of the unanswered appends.
    fn unanswered_bytes(&self) -> usize {
        self.stream.as_ref().map_or(0, |stream| stream.unanswered_bytes.load(Ordering::Relaxed))
    }
}

/// Waits for the next answers to appends. Cancel-safe. Pending while there is no stream.
async fn next_append_answers(stream: &mut Option<InboundStream>) -> Vec<peer::PeerAnswer> {
    if let Some(stream) = stream
        && let Some(answers) = stream.answers.next().await
    {
        return answers;
    }
    // Raft ends a stream after an answer that the leader cannot continue from; the leader then opens another stream.
    std::future::pending().await
}

/// Appends of one stream, which are passed to raft.
struct InboundStream {
    number: u64,
    requests: mpsc::Sender<(Tag, AppendEntriesRequest, usize)>,
    unanswered_bytes: Arc<AtomicUsize>,
    answers: BoxStream<'static, Vec<peer::PeerAnswer>>,
}

impl InboundStream {
    fn new(inner: &Inner, number: u64) -> InboundStream {
        let (requests, queued) = mpsc::channel(WINDOW_REQUESTS);
        let unanswered_bytes = Arc::new(AtomicUsize::new(0));
        // Requests that raft has taken. It answers them in order.
        let taken = Arc::new(Mutex::new(VecDeque::<(Tag, usize)>::new()));
        let requests_of_raft = {
            let taken = taken.clone();
            ReceiverStream::new(queued).map(move |(tag, request, bytes)| {
                taken.lock().unwrap_or_else(PoisonError::into_inner).push_back((tag, bytes));
                request
            })
        };
        let (promise_ms, agreement, log) = (inner.promise_ms(), inner.agreement.clone(), inner.log.clone());
        let unanswered = unanswered_bytes.clone();
        let answers = inner.raft.stream_append(requests_of_raft).map(move |result| {
            let answered = taken.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let (tag, bytes) = answered.unwrap_or_default();
            unanswered.fetch_sub(bytes, Ordering::Relaxed);
            let result = result
                .map_err(unavailable)
                .and_then(|result| append_answer(&result, promise_ms, &agreement, &log));
            match result {
                Ok(kind) => answer(tag, kind),
                Err(status) => refusal(tag.id, &status),
            }
        });
        InboundStream {
            number,
            requests,
            unanswered_bytes,
            answers: answers.ready_chunks(ANSWERS_AT_ONCE).boxed(),
        }
    }

    fn take(&self, tag: Tag, request: AppendEntriesRequest, bytes: usize) -> Result<(), Status> {
        let unanswered = self.unanswered_bytes.fetch_add(bytes, Ordering::Relaxed);
        if unanswered > WINDOW_BYTES + MESSAGE_BYTES_MAX {
            return Err(Status::resource_exhausted("the member exceeds the window"));
        }
        match self.requests.try_send((tag, request, bytes)) {
            // A request after the end of the stream is ignored: the last answer tells the leader that it has ended.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(Status::resource_exhausted("the member exceeds the window"))
            }
        }
    }
}

async fn heartbeat(inner: Arc<Inner>, from: u64, append: peer::AppendRequest) -> Result<AnswerKind, Status> {
    let request = inner.parse_append(&append)?;
    inner.note_leader(from);
    let previous = request.prev_log_id;
    let last = request.entries.last().map(|entry| entry.log_id).or(previous);
    let result: AppendResult = match inner.raft.append_entries(request).await.map_err(unavailable)? {
        AppendEntriesResponse::Success => Ok(last),
        AppendEntriesResponse::PartialSuccess(through) => Ok(through),
        AppendEntriesResponse::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote)),
        AppendEntriesResponse::Conflict => match previous {
            Some(previous) => Err(StreamAppendError::Conflict(previous)),
            None => return Err(Status::internal("raft reported a conflict without a previous entry")),
        },
    };
    append_answer(&result, inner.promise_ms(), &inner.agreement, &inner.log)
}

async fn vote(inner: Arc<Inner>, body: Bytes, is_pre_vote: bool) -> Result<AnswerKind, Status> {
    let request: VoteRequest = inner.decode(&body)?;
    inner.check_may_vote(&request)?;
    let answered = match is_pre_vote {
        true => inner.raft.pre_vote(request).await,
        false => inner.raft.vote(request).await,
    };
    encoded(&answered.map_err(unavailable)?)
}

async fn transfer_leader(inner: Arc<Inner>, body: Bytes) -> Result<AnswerKind, Status> {
    let request: TransferLeaderRequest = inner.decode(&body)?;
    encoded(&inner.raft.handle_transfer_leader(request).await.map_err(unavailable)?)
}

fn encoded<T: Serialize>(message: &T) -> Result<AnswerKind, Status> {
    codec::encode(message).map(AnswerKind::Body).map_err(Status::internal)
}

fn append_answer(
    result: &AppendResult,
    promise_ms: u64,
    agreement: &Agreement,
    log: &SpaceWatch,
) -> Result<AnswerKind, Status> {
    let body = codec::encode(result).map_err(Status::internal)?;
    // A refused leader gets no promise.
    let promise_ms = if result.is_ok() { promise_ms } else { 0 };
    let table = agreement.latest().map(TableHash::to_wire);
    let room_bytes = disk_space::space_if_short(log);
    Ok(AnswerKind::Append(peer::AppendAnswer { body, promise_ms, table, room_bytes }))
}

fn answer(tag: Tag, mut kind: AnswerKind) -> peer::PeerAnswer {
    let Tag { id, format } = tag;
    format::wrap_answer(format, &mut kind);
    peer::PeerAnswer { id, format, kind: Some(kind), ..Default::default() }
}

fn refusal(id: u64, status: &Status) -> peer::PeerAnswer {
    let refused = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    peer::PeerAnswer { id, refused: refused.to_owned(), code: status.code() as i32, ..Default::default() }
}

fn unavailable(error: impl std::fmt::Display) -> Status {
    Status::unavailable(error.to_string())
}
