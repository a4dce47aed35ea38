//! The one lasting connection to a member: entries, heartbeats, votes and pings go on it, and their answers come back
//! (docs/adr/0021-member-connections.md).
//!
//! Requests are numbered, and an answer has the number of its request. So a heartbeat does not wait for the answer to the entries
//! before it, and an answer that comes after its caller has given up still counts for the lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_proto::peer;
use lockkeeper_proto::peer::peer_answer::Kind as AnswerKind;
use lockkeeper_proto::peer::peer_request::Kind;
use openraft::raft::StreamAppendResult;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tonic::{Code, Status};

use super::backoff::Backoff;
use super::direct::{Direct, Incoming, Outgoing};
use super::round_trip::RoundTrip;
use super::{Shared, codec, format};
use crate::listen::LogThrottle;
use crate::raft::agreement::TableHash;
use crate::raft::types::{Member, TypeConfig, Vote};

/// Calls that wait for the connection.
const CALLS_QUEUED: usize = 64;
/// Appends that wait for the connection; the rest waits in openraft's own stream.
const APPENDS_QUEUED: usize = 2;
/// Requests and bytes of one stream that may be unanswered. The follower's queue has room for just as many.
pub(super) const WINDOW_REQUESTS: usize = 128;
pub(super) const WINDOW_BYTES: usize = 8 << 20;
/// Between two pings of a connection on which nothing is wrong: they measure the round trip, and find out that the
/// connection is cut while nothing else goes on it.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How long a goodbye may take to be written.
const GOODBYE_WITHIN: Duration = Duration::from_millis(100);

pub(super) type AppendResult = StreamAppendResult<TypeConfig>;

/// What a call is answered with.
pub(super) enum Answered {
    Append(AppendResult),
    Body(Bytes),
    Pong,
}

/// Whether the connection is there.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LinkState {
    Connecting,
    /// Counts the connections: what belongs to one of them does not go on with the next.
    Connected(u64),
    Down(String),
}

/// A request on its way to the connection.
struct Outbound {
    /// The connection that it is meant for; none: whichever there is.
    connection: Option<u64>,
    kind: Kind,
    /// As whose leader it is sent, if it is an append or a heartbeat.
    vote: Option<Vote>,
    reply: Reply,
}

enum Reply {
    Call(oneshot::Sender<Result<Answered, Status>>),
    Stream(mpsc::Sender<Result<AppendResult, Status>>),
    Ping,
    /// Sent when it is written.
    Goodbye(oneshot::Sender<()>),
}

impl Reply {
    /// Whether nobody waits for it any more.
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

/// The connection to one member, shared by all that speak with it.
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
    /// Connects, and again whenever the connection is lost, until it is dropped.
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

    /// The member as this link knows it.
    pub(super) fn member(&self) -> &Member {
        &self.member
    }

    /// The measured round trip; none before the first.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.round_trip.smoothed()
    }

    /// One request and its answer. Waits while a connection is being opened.
    pub(super) async fn call(&self, kind: Kind, vote: Option<Vote>) -> Result<Answered, Status> {
        let (reply, answered) = oneshot::channel();
        let outbound = Outbound { connection: None, kind, vote, reply: Reply::Call(reply) };
        self.calls
            .try_send(outbound)
            .map_err(|_| Status::unavailable("too much waits for the connection"))?;
        answered.await.unwrap_or_else(|_| Err(Status::unavailable("the connection was lost")))
    }

    /// Tells the member that this leader stops. Ends when that is written, or cannot be.
    pub(super) async fn goodbye(&self, vote: Bytes) {
        let (written, is_written) = oneshot::channel();
        let reply = Reply::Goodbye(written);
        let outbound = Outbound { connection: None, kind: Kind::Goodbye(vote), vote: None, reply };
        if self.calls.try_send(outbound).is_ok() {
            let _ = timeout(GOODBYE_WITHIN, is_written).await;
        }
    }

    /// A stream of appends on the connection that there is, or is about to be.
    pub(super) async fn open_stream(&self, number: u64, limit: Duration) -> Result<AppendStream, Status> {
        let mut state = self.state.clone();
        let settled = async {
            let settled = state.wait_for(|state| !matches!(state, LinkState::Connecting)).await;
            settled.map(|state| state.clone())
        };
        let connection = match timeout(limit, settled).await {
            Ok(Ok(LinkState::Connected(connection))) => connection,
            Ok(Ok(LinkState::Down(why))) => return Err(Status::unavailable(why)),
            _ => return Err(Status::unavailable("no connection yet")),
        };
        let (reply, answers) = mpsc::channel(WINDOW_REQUESTS);
        Ok(AppendStream {
            number,
            connection,
            appends: self.appends.clone(),
            state,
            reply,
            answers,
            unanswered: Default::default(),
            unanswered_bytes: 0,
        })
    }
}

/// Appends that are answered in their order. Ends with its connection.
pub(super) struct AppendStream {
    number: u64,
    connection: u64,
    appends: mpsc::Sender<Outbound>,
    state: watch::Receiver<LinkState>,
    reply: mpsc::Sender<Result<AppendResult, Status>>,
    answers: mpsc::Receiver<Result<AppendResult, Status>>,
    /// The sizes of the requests that wait for their answers.
    unanswered: std::collections::VecDeque<usize>,
    unanswered_bytes: usize,
}

impl AppendStream {
    /// Whether the member takes one more request now.
    pub(super) fn has_room(&self) -> bool {
        self.unanswered.is_empty()
            || (self.unanswered.len() < WINDOW_REQUESTS && self.unanswered_bytes < WINDOW_BYTES)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Ends when there is room for one more request on its way to the connection.
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

    /// The next answer. Cancel-safe.
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

/// Room for one request.
pub(super) struct Reserved(mpsc::OwnedPermit<Outbound>);

/// The task of a link.
struct Worker {
    shared: Arc<Shared>,
    target: u64,
    member: Member,
    calls: mpsc::Receiver<Outbound>,
    appends: mpsc::Receiver<Outbound>,
    state: watch::Sender<LinkState>,
    round_trip: Arc<RoundTrip>,
    connections: u64,
    refusals: LogThrottle,
}

impl Worker {
    async fn run(mut self) {
        let mut backoff = Backoff::new();
        loop {
            self.state.send_replace(LinkState::Connecting);
            let limit = self.shared.timing.connect_within();
            let why = match Direct::open(&self.shared.dialer, &self.member.peer, limit).await {
                Ok(direct) => {
                    self.shared.counters.opened.inc();
                    self.connections += 1;
                    let mut conversation = Conversation::new(direct, self.shared.versions.format_min);
                    let ended = self.converse(&mut conversation).await;
                    // One that was never answered was refused, or the member is not well: do not hurry.
                    if conversation.was_answered {
                        backoff.reset();
                    }
                    self.report(&ended);
                    ended.message().to_owned()
                }
                Err(error) => error.to_string(),
            };
            tracing::debug!(node = self.target, address = %self.member.peer, %why, "no connection to a member");
            let why = format!("node {} at {}: {why}", self.target, self.member.peer);
            self.state.send_replace(LinkState::Down(why.clone()));
            self.pause(backoff.next(), &why).await;
        }
    }

    /// Not a matter of time: somebody has to do something.
    fn report(&self, ended: &Status) {
        if ended.code() == Code::FailedPrecondition && self.refusals.allow().is_some() {
            tracing::error!(node = self.target, address = %self.member.peer, why = ended.message(),
                "a member refuses to speak with this node");
        }
    }

    /// Waits before the next connection, and refuses what comes meanwhile.
    async fn pause(&mut self, pause: Duration, why: &str) {
        let until = tokio::time::sleep(pause);
        tokio::pin!(until);
        loop {
            let refused = tokio::select! {
                biased;
                () = &mut until => return,
                Some(call) = self.calls.recv() => call,
                Some(append) = self.appends.recv() => append,
            };
            if let Reply::Call(reply) = refused.reply {
                let _ = reply.send(Err(Status::unavailable(why)));
            }
        }
    }

    /// Carries requests and answers for as long as the connection lasts; says why it ended.
    async fn converse(&mut self, conversation: &mut Conversation) -> Status {
        let mut look = tokio::time::interval(self.shared.timing.suspect_after() / 2);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first request says who speaks to whom. It also shows that the member takes requests.
        self.ping(conversation);
        self.state.send_replace(LinkState::Connected(self.connections));
        loop {
            let Conversation { incoming, outgoing, .. } = conversation;
            let has_room = outgoing.is_written();
            tokio::select! {
                biased;
                written = outgoing.write(), if !has_room => match written {
                    Ok(()) => conversation.say_goodbye(),
                    Err(error) => return gone(&error),
                },
                answer = incoming.next::<peer::PeerAnswer>() => match answer {
                    Ok(Some(answer)) => {
                        if let Err(refused) = self.answered(conversation, answer) {
                            return refused;
                        }
                    }
                    Ok(None) => return Status::unavailable("the member has closed the connection"),
                    Err(error) => return gone(&error),
                },
                Some(call) = self.calls.recv(), if has_room => self.send(conversation, call),
                Some(append) = self.appends.recv(), if has_room => self.send(conversation, append),
                _ = look.tick() => {
                    if let Err(stalled) = self.look(conversation) {
                        return stalled;
                    }
                }
            }
        }
    }

    fn send(&self, conversation: &mut Conversation, outbound: Outbound) {
        let Outbound { connection, mut kind, vote, reply } = outbound;
        if reply.is_abandoned() || connection.is_some_and(|connection| connection != self.connections) {
            return;
        }
        let id = conversation.next_id;
        conversation.next_id += 1;
        let header = (id == 1).then(|| self.shared.header(self.target, &self.member));
        let format = conversation.format;
        format::wrap_request(format, &mut kind);
        conversation.outgoing.push(&peer::PeerRequest { header, format, id, kind: Some(kind) });
        match reply {
            Reply::Goodbye(written) => conversation.goodbye = Some(written),
            reply => drop(conversation.pending.insert(id, Pending { vote, sent: Instant::now(), reply })),
        }
    }

    fn ping(&self, conversation: &mut Conversation) {
        conversation.pinged = Some(Instant::now());
        let kind = Kind::Ping(peer::Ping {});
        self.send(conversation, Outbound { connection: None, kind, vote: None, reply: Reply::Ping });
    }

    /// Pings a connection that is silent, and gives up one that does not answer.
    fn look(&self, conversation: &mut Conversation) -> Result<(), Status> {
        let timing = &self.shared.timing;
        let silence = conversation.heard.elapsed();
        if let Some(pinged) = conversation.pinged {
            let waits = pinged.elapsed().min(silence);
            if waits > timing.stalled_after() {
                return Err(Status::unavailable(format!("the connection is cut: no answer for {silence:?}")));
            }
            return Ok(());
        }
        let is_suspect = !conversation.pending.is_empty() && silence > timing.suspect_after();
        if is_suspect || conversation.ping_due <= Instant::now() {
            conversation.ping_due = Instant::now() + PING_EVERY;
            self.ping(conversation);
        }
        Ok(())
    }

    /// Passes an answer on. Fails if the member refuses the connection.
    fn answered(&self, conversation: &mut Conversation, answer: peer::PeerAnswer) -> Result<(), Status> {
        conversation.heard = Instant::now();
        let peer::PeerAnswer { id, mut kind, format, refused, code } = answer;
        if let Some(kind) = &mut kind {
            format::unwrap_answer(format, kind).map_err(Status::internal)?;
        }
        if let Some(AnswerKind::Pong(pong)) = &kind {
            conversation.format = self.common_format(pong)?;
        }
        let result = match refused.is_empty() {
            true => Ok(kind),
            false => Err(Status::new(Code::from_i32(code), refused)),
        };
        if id == 0 {
            return Err(result
                .err()
                .unwrap_or_else(|| Status::unavailable("the member ends the connection")));
        }
        conversation.was_answered = true;
        let Some(Pending { vote, sent, reply }) = conversation.pending.remove(&id) else { return Ok(()) };
        let result = result.and_then(|kind| self.open_answer(kind, vote, sent));
        match (reply, result) {
            (Reply::Ping, Ok(_)) => {
                conversation.pinged = None;
                self.round_trip.measured(sent.elapsed());
            }
            (Reply::Ping, Err(refused)) => return Err(refused),
            (Reply::Call(reply), result) => drop(reply.send(result)),
            (Reply::Stream(reply), result) => {
                let result = match result {
                    Ok(Answered::Append(result)) => Ok(result),
                    Ok(_) => Err(Status::internal("the answer is not that to an append")),
                    Err(refused) => Err(refused),
                };
                // There is room: no more are unanswered than fit.
                let _ = reply.try_send(result);
            }
            (Reply::Goodbye(_), _) => {}
        }
        Ok(())
    }

    /// The format that both nodes use from now on.
    fn common_format(&self, pong: &peer::Pong) -> Result<u32, Status> {
        let own = self.shared.versions;
        own.common_format(pong.format_min, pong.format_max).ok_or_else(|| {
            Status::failed_precondition(own.no_common_format(pong.format_min, pong.format_max))
        })
    }

    /// Reads an answer, and counts what it acknowledges.
    fn open_answer(
        &self,
        kind: Option<AnswerKind>,
        vote: Option<Vote>,
        sent: Instant,
    ) -> Result<Answered, Status> {
        match kind {
            Some(AnswerKind::Append(answer)) => {
                self.shared.rooms.report(self.target, answer.room_bytes);
                if let Some(theirs) = TableHash::from_wire(answer.table.as_ref()) {
                    self.shared.agreement.report(self.target, theirs);
                }
                let result: AppendResult = codec::decode(&answer.body).map_err(Status::internal)?;
                if let (Ok(_), Some(vote)) = (&result, vote) {
                    let promise = Duration::from_millis(answer.promise_ms);
                    self.shared.acks.accepted(self.target, vote, sent, promise);
                }
                Ok(Answered::Append(result))
            }
            Some(AnswerKind::Body(body)) => Ok(Answered::Body(body)),
            Some(AnswerKind::Pong(_)) => Ok(Answered::Pong),
            None => Err(Status::internal("the answer is empty")),
        }
    }
}

/// One connection and what is on its way.
struct Conversation {
    incoming: Incoming,
    outgoing: Outgoing,
    pending: BTreeMap<u64, Pending>,
    next_id: u64,
    /// The format of requests.
    format: u32,
    /// When something last came back.
    heard: Instant,
    was_answered: bool,
    /// The ping that is not answered yet.
    pinged: Option<Instant>,
    ping_due: Instant,
    goodbye: Option<oneshot::Sender<()>>,
}

impl Conversation {
    fn new(direct: Direct, format: u32) -> Conversation {
        let (incoming, outgoing) = direct.split();
        let now = Instant::now();
        Conversation {
            incoming,
            outgoing,
            pending: BTreeMap::new(),
            next_id: 1,
            format,
            heard: now,
            was_answered: false,
            pinged: None,
            ping_due: now + PING_EVERY,
            goodbye: None,
        }
    }

    /// Everything is written.
    fn say_goodbye(&mut self) {
        if let Some(written) = self.goodbye.take() {
            let _ = written.send(());
        }
    }
}

fn gone(error: &std::io::Error) -> Status {
    Status::unavailable(format!("the connection is gone: {error}"))
}

impl Shared {
    /// Who speaks to whom.
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
