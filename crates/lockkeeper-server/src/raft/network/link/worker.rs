//! The task of a link: connects, transmits requests and answers, and reconnects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::peer;
use lockkeeper_api::peer::peer_answer::Kind as AnswerKind;
use lockkeeper_api::peer::peer_request::Kind;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tonic::{Code, Status};

use super::{AppendResult, LinkAnswer, LinkState, Outbound, PING_EVERY, Pending, Reply};
use crate::limits::log_throttle::LogThrottle;
use crate::raft::agreement::TableHash;
use crate::raft::network::backoff::Backoff;
use crate::raft::network::direct::{Direct, Incoming, Outgoing};
use crate::raft::network::round_trip::RoundTrip;
use crate::raft::network::{Shared, codec, format};
use crate::raft::types::{Member, Vote};

/// The task of a link.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) target: u64,
    pub(super) member: Member,
    pub(super) calls: mpsc::Receiver<Outbound>,
    pub(super) appends: mpsc::Receiver<Outbound>,
    pub(super) state: watch::Sender<LinkState>,
    pub(super) round_trip: Arc<RoundTrip>,
    pub(super) connections: u64,
    pub(super) refusals: LogThrottle,
}

impl Worker {
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::new();
        loop {
            self.state.send_replace(LinkState::Connecting);
            let limit = self.shared.timing.connect_within();
            let why = match Direct::open(&self.shared.dialer, &self.member.peer, limit).await {
                Ok(direct) => {
                    self.shared.counters.opened.inc();
                    self.connections += 1;
                    let mut active = ActiveConnection::new(direct, self.shared.versions.format_min);
                    let ended = self.transmit(&mut active).await;
                    // A connection that was never answered was refused, or the member is unhealthy: keep the back-off.
                    if active.was_answered {
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

    /// Logs refusals that an operator has to resolve.
    fn report(&self, ended: &Status) {
        if ended.code() == Code::FailedPrecondition && self.refusals.allow().is_some() {
            tracing::error!(node = self.target, address = %self.member.peer, why = ended.message(),
                "a member refuses requests of this node");
        }
    }

    /// Waits before the next connection, and refuses requests meanwhile.
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

    /// Transmits requests and answers until the connection ends. Returns why it ended.
    async fn transmit(&mut self, active: &mut ActiveConnection) -> Status {
        let mut liveness_check = tokio::time::interval(self.shared.timing.suspect_after() / 2);
        liveness_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first request identifies sender and receiver. Its answer shows that the member accepts requests.
        self.ping(active);
        self.state.send_replace(LinkState::Connected(self.connections));
        loop {
            let ActiveConnection { incoming, outgoing, .. } = active;
            let has_room = outgoing.is_written();
            tokio::select! {
                biased;
                written = outgoing.write(), if !has_room => match written {
                    Ok(()) => active.report_goodbye_written(),
                    Err(error) => return connection_lost(&error),
                },
                answer = incoming.next::<peer::PeerAnswer>() => match answer {
                    Ok(Some(answer)) => {
                        if let Err(refused) = self.handle_answer(active, answer) {
                            return refused;
                        }
                    }
                    Ok(None) => return Status::unavailable("the member has closed the connection"),
                    Err(error) => return connection_lost(&error),
                },
                Some(call) = self.calls.recv(), if has_room => self.send(active, call),
                Some(append) = self.appends.recv(), if has_room => self.send(active, append),
                _ = liveness_check.tick() => {
                    if let Err(stalled) = self.check_liveness(active) {
                        return stalled;
                    }
                }
            }
        }
    }

    fn send(&self, active: &mut ActiveConnection, outbound: Outbound) {
        let Outbound { connection, mut kind, vote, reply } = outbound;
        if reply.is_abandoned() || connection.is_some_and(|connection| connection != self.connections) {
            return;
        }
        let id = active.next_id;
        active.next_id += 1;
        let header = (id == 1).then(|| self.shared.header(self.target, &self.member));
        let format = active.format;
        format::wrap_request(format, &mut kind);
        active.outgoing.push(&peer::PeerRequest { header, format, id, kind: Some(kind) });
        match reply {
            Reply::Goodbye(written) => active.goodbye = Some(written),
            reply => drop(active.pending.insert(id, Pending { vote, sent: Instant::now(), reply })),
        }
    }

    fn ping(&self, active: &mut ActiveConnection) {
        active.pinged = Some(Instant::now());
        let kind = Kind::Ping(peer::Ping {});
        self.send(active, Outbound { connection: None, kind, vote: None, reply: Reply::Ping });
    }

    /// Pings a silent connection. Fails if a ping is not answered.
    fn check_liveness(&self, active: &mut ActiveConnection) -> Result<(), Status> {
        let timing = &self.shared.timing;
        let silence = active.last_heard.elapsed();
        if let Some(pinged) = active.pinged {
            let waits = pinged.elapsed().min(silence);
            if waits > timing.stalled_after() {
                return Err(Status::unavailable(format!(
                    "the connection timed out: no answer for {silence:?}"
                )));
            }
            return Ok(());
        }
        let is_suspect = !active.pending.is_empty() && silence > timing.suspect_after();
        if is_suspect || active.ping_due <= Instant::now() {
            active.ping_due = Instant::now() + PING_EVERY;
            self.ping(active);
        }
        Ok(())
    }

    /// Passes an answer on. Fails if the member refuses the connection.
    fn handle_answer(&self, active: &mut ActiveConnection, answer: peer::PeerAnswer) -> Result<(), Status> {
        active.last_heard = Instant::now();
        let peer::PeerAnswer { id, mut kind, format, refused, code } = answer;
        if let Some(kind) = &mut kind {
            format::unwrap_answer(format, kind).map_err(Status::internal)?;
        }
        if let Some(AnswerKind::Pong(pong)) = &kind {
            active.format = self.common_format(pong)?;
            self.shared.counters.set_message_format(self.target, active.format);
        }
        let result = match refused.is_empty() {
            true => Ok(kind),
            false => Err(Status::new(Code::from_i32(code), refused)),
        };
        if id == 0 {
            return Err(result
                .err()
                .unwrap_or_else(|| Status::unavailable("the member closes the connection")));
        }
        active.was_answered = true;
        let Some(Pending { vote, sent, reply }) = active.pending.remove(&id) else { return Ok(()) };
        let result = result.and_then(|kind| self.parse_answer(kind, vote, sent));
        match (reply, result) {
            (Reply::Ping, Ok(_)) => {
                active.pinged = None;
                self.round_trip.record(sent.elapsed());
            }
            (Reply::Ping, Err(refused)) => return Err(refused),
            (Reply::Call(reply), result) => drop(reply.send(result)),
            (Reply::Stream(reply), result) => {
                let result = match result {
                    Ok(LinkAnswer::Append(result)) => Ok(result),
                    Ok(_) => Err(Status::internal("the answer to an append has the wrong type")),
                    Err(refused) => Err(refused),
                };
                // The channel has room: it holds as many answers as the window allows requests.
                let _ = reply.try_send(result);
            }
            (Reply::Goodbye(_), _) => {}
        }
        Ok(())
    }

    /// Returns the format that both nodes use from now on.
    fn common_format(&self, pong: &peer::Pong) -> Result<u32, Status> {
        let own = self.shared.versions;
        own.common_format(pong.format_min, pong.format_max).ok_or_else(|| {
            Status::failed_precondition(own.no_common_format(pong.format_min, pong.format_max))
        })
    }

    /// Decodes an answer and records what it reports: acknowledgement, disk space and table hash.
    fn parse_answer(
        &self,
        kind: Option<AnswerKind>,
        vote: Option<Vote>,
        sent: Instant,
    ) -> Result<LinkAnswer, Status> {
        match kind {
            Some(AnswerKind::Append(answer)) => {
                self.shared.space_reports.report(self.target, answer.room_bytes);
                if let Some(theirs) = TableHash::from_wire(answer.table.as_ref()) {
                    self.shared.agreement.report(self.target, theirs);
                }
                let result: AppendResult = codec::decode(&answer.body).map_err(Status::internal)?;
                if let (Ok(_), Some(vote)) = (&result, vote) {
                    let promise = Duration::from_millis(answer.promise_ms);
                    self.shared.acks.record(self.target, vote, sent, promise);
                }
                Ok(LinkAnswer::Append(result))
            }
            Some(AnswerKind::Body(body)) => Ok(LinkAnswer::Body(body)),
            Some(AnswerKind::Pong(_)) => Ok(LinkAnswer::Pong),
            None => Err(Status::internal("the answer is empty")),
        }
    }
}

/// One connection and its unanswered requests.
struct ActiveConnection {
    incoming: Incoming,
    outgoing: Outgoing,
    pending: BTreeMap<u64, Pending>,
    next_id: u64,
    /// Format of requests.
    format: u32,
    /// Arrival of the last answer.
    last_heard: Instant,
    was_answered: bool,
    /// Time of the unanswered ping.
    pinged: Option<Instant>,
    ping_due: Instant,
    goodbye: Option<oneshot::Sender<()>>,
}

impl ActiveConnection {
    fn new(direct: Direct, format: u32) -> ActiveConnection {
        let (incoming, outgoing) = direct.split();
        let now = Instant::now();
        ActiveConnection {
            incoming,
            outgoing,
            pending: BTreeMap::new(),
            next_id: 1,
            format,
            last_heard: now,
            was_answered: false,
            pinged: None,
            ping_due: now + PING_EVERY,
            goodbye: None,
        }
    }

    /// Reports that the goodbye is written.
    fn report_goodbye_written(&mut self) {
        if let Some(written) = self.goodbye.take() {
            let _ = written.send(());
        }
    }
}

fn connection_lost(error: &std::io::Error) -> Status {
    Status::unavailable(format!("the connection was lost: {error}"))
}
