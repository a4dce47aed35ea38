//! The persistent connection to a member, which carries entries, heartbeats, votes, pings and their answers
//! (docs/adr/0021-member-connections.md).
//!
//! Requests are numbered, and an answer has the number of its request. So a heartbeat does not wait for the answers to earlier
//! entries, and an answer that arrives after its caller has given up still counts for the lease.

#[cfg(test)]
mod tests;
mod worker;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_api::peer;
use lockkeeper_api::peer::peer_request::Kind;
use openraft::raft::StreamAppendResult;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tonic::Status;

use self::worker::Worker;
use super::Shared;
use super::round_trip::RoundTrip;
use crate::limits::log_throttle::LogThrottle;
use crate::raft::types::{Member, TypeConfig, Vote};

/// Maximum number of calls that wait for the connection.
const CALLS_QUEUED: usize = 64;
/// Maximum number of appends that wait for the connection. More wait in openraft's stream.
const APPENDS_QUEUED: usize = 2;
/// Maximum number of unanswered requests and bytes of one stream. The follower's queue has the same size.
pub(super) const WINDOW_REQUESTS: usize = 128;
pub(super) const WINDOW_BYTES: usize = 8 << 20;
/// Ping interval of a healthy connection. Pings measure the round trip and detect that an idle connection is cut.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Time limit for writing a goodbye.
const GOODBYE_WITHIN: Duration = Duration::from_millis(100);

pub(super) type AppendResult = StreamAppendResult<TypeConfig>;

/// Answer to a call.
pub(super) enum LinkAnswer {
    Append(AppendResult),
    Body(Bytes),
    Pong,
}

/// State of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LinkState {
    Connecting,
    /// Number of the connection. Streams end with their connection.
    Connected(u64),
    Down(String),
}

/// A request that is queued for the connection.
struct Outbound {
    /// The connection that it belongs to. `None`: any.
    connection: Option<u64>,
    kind: Kind,
    /// The leader's vote, if it is an append or a heartbeat.
    vote: Option<Vote>,
    reply: Reply,
}

enum Reply {
    Call(oneshot::Sender<Result<LinkAnswer, Status>>),
    Stream(mpsc::Sender<Result<AppendResult, Status>>),
    Ping,
    /// Completed when the goodbye is written.
    Goodbye(oneshot::Sender<()>),
}

impl Reply {
    /// Reports whether the caller has stopped waiting.
    fn is_abandoned(&self) -> bool {
        match self {
            Reply::Call(reply) => reply.is_closed(),
            Reply::Stream(reply) => reply.is_closed(),
            Reply::Goodbye(written) => written.is_closed(),
            Reply::Ping => false,
        }
    }
}

/// A request that waits for its answer.
struct Pending {
    vote: Option<Vote>,
    sent: Instant,
    reply: Reply,
}

/// Connection to one member, shared by all its clients.
#[derive(Debug)]
pub(super) struct Link {
    member: Member,
    calls: mpsc::Sender<Outbound>,
    appends: mpsc::Sender<Outbound>,
    state: watch::Receiver<LinkState>,
    round_trip: Arc<RoundTrip>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// Connects, and reconnects whenever the connection is lost, until the link is dropped.
    pub(super) fn open(shared: Arc<Shared>, target: u64, member: Member) -> Link {
        let (calls, queued_calls) = mpsc::channel(CALLS_QUEUED);
        let (appends, queued_appends) = mpsc::channel(APPENDS_QUEUED);
        let (state, watched) = watch::channel(LinkState::Connecting);
        let round_trip = Arc::new(RoundTrip::default());
        let worker = Worker {
            shared,
            target,
            member: member.clone(),
            calls: queued_calls,
            appends: queued_appends,
            state,
            round_trip: round_trip.clone(),
            connections: 0,
            refusals: LogThrottle::new(),
        };
        let task = tokio::spawn(worker.run());
        Link { member, calls, appends, state: watched, round_trip, task }
    }

    /// Returns the member that this link connects to.
    pub(super) fn member(&self) -> &Member {
        &self.member
    }

    /// Returns the measured round trip, if there are enough samples.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.round_trip.smoothed()
    }

    /// Sends a request and waits for its answer. Waits while a connection is being opened.
    pub(super) async fn call(&self, kind: Kind, vote: Option<Vote>) -> Result<LinkAnswer, Status> {
        let (reply, answered) = oneshot::channel();
        let outbound = Outbound { connection: None, kind, vote, reply: Reply::Call(reply) };
        self.calls
            .try_send(outbound)
            .map_err(|_| Status::unavailable("too many calls wait for the connection"))?;
        answered.await.unwrap_or_else(|_| Err(Status::unavailable("the connection was lost")))
    }

    /// Tells the member that this leader stops. Returns when the message is written or can't be.
    pub(super) async fn goodbye(&self, vote: Bytes) {
        let (written, is_written) = oneshot::channel();
        let reply = Reply::Goodbye(written);
        let outbound = Outbound { connection: None, kind: Kind::Goodbye(vote), vote: None, reply };
        if self.calls.try_send(outbound).is_ok() {
            let _ = timeout(GOODBYE_WITHIN, is_written).await;
        }
    }

    /// Opens a stream of appends on the current connection, or on the one that is being opened.
    pub(super) async fn open_stream(&self, number: u64, limit: Duration) -> Result<AppendStream, Status> {
        let mut state = self.state.clone();
        let settled = async {
            let settled = state.wait_for(|state| !matches!(state, LinkState::Connecting)).await;
            settled.map(|state| state.clone())
        };
        let connection = match timeout(limit, settled).await {
            Ok(Ok(LinkState::Connected(connection))) => connection,
            Ok(Ok(LinkState::Down(why))) => return Err(Status::unavailable(why)),
            _ => return Err(Status::unavailable("not connected yet")),
        };
        let (reply, answers) = mpsc::channel(WINDOW_REQUESTS);
        Ok(AppendStream {
            number,
            connection,
            appends: self.appends.clone(),
            state,
            reply,
            answers,
            unanswered: VecDeque::new(),
            unanswered_bytes: 0,
        })
    }
}

/// Stream of appends, which are answered in order. Ends with its connection.
pub(super) struct AppendStream {
    number: u64,
    connection: u64,
    appends: mpsc::Sender<Outbound>,
    state: watch::Receiver<LinkState>,
    reply: mpsc::Sender<Result<AppendResult, Status>>,
    answers: mpsc::Receiver<Result<AppendResult, Status>>,
    /// Sizes of the unanswered requests.
    unanswered: VecDeque<usize>,
    unanswered_bytes: usize,
}

impl AppendStream {
    /// Reports whether the window has room for another request.
    pub(super) fn has_room(&self) -> bool {
        self.unanswered.is_empty()
            || (self.unanswered.len() < WINDOW_REQUESTS && self.unanswered_bytes < WINDOW_BYTES)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Waits for room in the queue to the connection.
    pub(super) async fn reserve(&self) -> Result<Reserved, Status> {
        let permit = self.appends.clone().reserve_owned().await;
        permit.map(Reserved).map_err(|_| Status::unavailable("the link is closed"))
    }

    pub(super) fn send(
        &mut self,
        reserved: Reserved,
        body: Bytes,
        vote: Vote,
        majority: Option<peer::TableHash>,
    ) {
        self.unanswered.push_back(body.len());
        self.unanswered_bytes += body.len();
        let kind = Kind::Append(peer::AppendRequest { body, stream: self.number, majority });
        let reply = Reply::Stream(self.reply.clone());
        reserved.0.send(Outbound { connection: Some(self.connection), kind, vote: Some(vote), reply });
    }

    /// Waits for the next answer. Cancel-safe.
    pub(super) async fn next_answer(&mut self) -> Result<AppendResult, Status> {
        let connection = LinkState::Connected(self.connection);
        tokio::select! {
            biased;
            answer = self.answers.recv() => {
                let bytes = self.unanswered.pop_front().unwrap_or_default();
                self.unanswered_bytes = self.unanswered_bytes.saturating_sub(bytes);
                answer.unwrap_or_else(|| Err(Status::unavailable("the link is closed")))
            }
            state = self.state.wait_for(|state| *state != connection) => Err(match state.as_deref() {
                Ok(LinkState::Down(why)) => Status::unavailable(why.clone()),
                _ => Status::unavailable("the connection was lost"),
            }),
        }
    }
}

/// Reserved room for one request.
pub(super) struct Reserved(mpsc::OwnedPermit<Outbound>);

impl Shared {
    /// Returns the header that names sender and receiver.
    pub(super) fn header(&self, target: u64, member: &Member) -> peer::Header {
        let own = self.home.identity();
        peer::Header {
            format: self.versions.format_min,
            proof: own.proof(target, member.folder).into(),
            cell: own.cell,
            from: own.node_id,
            to: target,
            to_folder: member.folder,
        }
    }
}
