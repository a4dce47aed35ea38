//! Checks whether the connected node still leads. A node that was stopped or cut off from the others keeps its connections
//! open, but does not answer, or answers only `unavailable`. When answers are overdue, the client pings its node, and then
//! asks another node for the leader. It reconnects only if another node leads: simultaneous reconnects of all clients do not
//! help a node that is merely slow.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::v1::answer::Kind as AnswerKind;
use lockkeeper_api::v1::operation::Kind as OperationKind;
use lockkeeper_api::{Code, v1};
use smol_str::SmolStr;

use super::connection::Connection;
use super::transport::{LinkError, Transport};
use super::work::{Entry, Work};
use crate::clock::Moment;

/// After this silence, with answers pending, the node is pinged. Doubled after each answered ping: a request that waits in a
/// queue gets no answer for a long time.
const PING_AFTER: Duration = Duration::from_millis(200);
const PING_AFTER_MAX: Duration = Duration::from_secs(2);
/// If the ping is not answered within this time, another node is asked. Doubled each time the connected node still leads.
const QUERY_AFTER: Duration = Duration::from_millis(200);
const QUERY_AFTER_MAX: Duration = Duration::from_secs(5);
/// The timeout for the answer of another node.
const QUERY_TIMEOUT: Duration = Duration::from_millis(400);

/// The leader as reported by another node: its ID and address.
pub(super) type ReportedLeader = Option<(u64, SmolStr)>;

/// State of the check whether the connected node still leads.
pub(super) struct LeaderCheck {
    /// When the node last answered.
    heard_at: Moment,
    /// When the unanswered ping was sent.
    pinged_at: Option<Moment>,
    ping_after: Duration,
    query_after: Duration,
    /// The number of queries, which selects the node to ask.
    queries: usize,
    /// The query to another node, in flight.
    pub(super) query: Option<Pin<Box<dyn Future<Output = ReportedLeader> + Send>>>,
}

impl LeaderCheck {
    pub(super) fn new(now: Moment) -> LeaderCheck {
        LeaderCheck {
            heard_at: now,
            pinged_at: None,
            ping_after: PING_AFTER,
            query_after: QUERY_AFTER,
            queries: 0,
            query: None,
        }
    }

    /// Records an answer of the node.
    pub(super) fn on_answer(&mut self, now: Moment) {
        self.heard_at = now;
        if self.pinged_at.is_some() {
            let ping_after = (self.ping_after * 2).min(PING_AFTER_MAX);
            *self = LeaderCheck { queries: self.queries, ping_after, ..LeaderCheck::new(now) };
        }
    }

    /// Records that the node answered only `unavailable`: another node may lead.
    pub(super) fn on_unavailable(&mut self, now: Moment) {
        self.heard_at = now;
        self.pinged_at.get_or_insert(now);
    }

    /// Records that an operation was sent, which should be answered soon.
    pub(super) fn on_sent(&mut self, now: Moment, first: bool) {
        self.ping_after = PING_AFTER;
        if first {
            self.heard_at = self.heard_at.max(now);
        }
    }
}

impl Connection {
    /// When the next step of the check is due.
    pub(super) fn leader_check_due(&self) -> Moment {
        if !self.is_up() || self.leader_check.query.is_some() || !self.transport.has_choice() {
            return Moment::NEVER;
        }
        match self.leader_check.pinged_at {
            Some(pinged_at) => pinged_at.plus(self.leader_check.query_after),
            None if self.work.is_empty() => Moment::NEVER,
            None => self.leader_check.heard_at.plus(self.leader_check.ping_after),
        }
    }

    /// Takes the next step: pings the node, or asks another node for the leader.
    pub(super) fn check_leader(&mut self, now: Moment) {
        match self.leader_check.pinged_at {
            None if now.since(self.leader_check.heard_at) < self.leader_check.ping_after
                || self.work.is_empty() => {}
            None => {
                self.leader_check.pinged_at = Some(now);
                let number = self.next_number();
                // An empty renewal: only a node that can prove its leadership answers it.
                let ping = Work::KeepAlive { sessions: Vec::new(), sent_at: now };
                self.submit(number, Entry::new(number, Moment::NEVER, ping), now);
            }
            Some(_) => {
                self.leader_check.queries += 1;
                self.leader_check.query =
                    Some(Box::pin(who_leads(Arc::clone(&self.transport), self.leader_check.queries)));
            }
        }
    }

    /// Handles the answer of another node.
    pub(super) fn on_reported_leader(&mut self, reported: ReportedLeader, now: Moment) {
        self.leader_check.query = None;
        // The connected node has answered meanwhile.
        if self.leader_check.pinged_at.is_none() {
            return;
        }
        match reported {
            Some((leader, address)) if self.node != Some(leader) => {
                let error = LinkError::new("another node leads the cell now");
                self.drop_link(&LinkError { leader: Some(address), ..error }, now);
            }
            // There is no leader: an election is going on.
            None => self.leader_check.pinged_at = Some(now),
            Some(_) => {
                self.leader_check.pinged_at = Some(now);
                self.leader_check.query_after = (self.leader_check.query_after * 2).min(QUERY_AFTER_MAX);
            }
        }
    }
}

/// Whether a frame contains nothing but `unavailable` errors, as from a node that is cut off from the others.
pub(super) fn is_only_unavailable(frame: &v1::ServerFrame) -> bool {
    let unavailable = |answer: &v1::Answer| matches!(&answer.kind, Some(AnswerKind::Error(error)) if error.code.parse() == Ok(Code::Unavailable));
    frame.events.is_empty() && !frame.answers.is_empty() && frame.answers.iter().all(unavailable)
}

async fn who_leads(transport: Arc<dyn Transport>, attempt: usize) -> ReportedLeader {
    let query = async {
        let mut link = transport.open(attempt, None).await.ok()?;
        let status = v1::Operation { id: 1, kind: Some(OperationKind::Status(v1::StatusRequest {})) };
        link.frames.send(v1::ClientFrame { operations: vec![status] });
        loop {
            if link.frames.has_unsent() {
                link.frames.writable().await;
            }
            for answer in link.answers.next().await.ok()?.answers {
                if let Some(AnswerKind::Status(status)) = answer.kind {
                    let leader = status.members.iter().find(|member| member.node_id == status.leader)?;
                    return Some((leader.node_id, SmolStr::new(&leader.address)));
                }
            }
        }
    };
    tokio::time::timeout(QUERY_TIMEOUT, query).await.ok().flatten()
}
