//! Triggers elections before raft's own random timeout: once when the leader's connection has ended or the leader has been silent for
//! longer than this node's promise, and at once when the leader resigns (goodbye).
//!
//! A connection can end, and a message can be late, while the leader is healthy. So each silence triggers a single attempt, at the end of
//! the promise, and the attempt is dropped if the leader was heard again or another election has started. It starts with a pre-vote, which
//! members that hear the leader refuse. All other elections are left to raft's own timeout.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use tokio::time::Instant;

use super::Raft;
use super::eligibility::Eligibility;
use super::leader_contact::LeaderContact;
use super::network::random_below;
use super::timing::Timing;
use super::types::Vote;
use crate::metrics::MemberCounters;

/// Trigger of elections, which watches the connections of the other members.
pub(crate) struct ElectionTrigger {
    raft: Raft,
    leader_contact: Arc<LeaderContact>,
    timing: Timing,
    counters: MemberCounters,
    eligibility: Arc<Eligibility>,
    /// Number of open connections of each member to this node.
    connections: Mutex<BTreeMap<u64, usize>>,
    // Invariant: at most one attempt is scheduled for a closed connection or a goodbye.
    is_scheduled: AtomicBool,
    /// Last leader contact before the latest attempt: each silence has one attempt.
    attempted: Mutex<Option<Instant>>,
}

/// Guard that counts a connection of a member until it is dropped.
pub(crate) struct OpenConnection<'a> {
    election_trigger: &'a ElectionTrigger,
    from: u64,
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        let mut connections = self.election_trigger.connections();
        if let Some(count) = connections.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                connections.remove(&self.from);
            }
        }
    }
}

impl ElectionTrigger {
    pub(crate) fn new(
        raft: Raft,
        leader_contact: Arc<LeaderContact>,
        timing: Timing,
        counters: MemberCounters,
        eligibility: Arc<Eligibility>,
    ) -> ElectionTrigger {
        ElectionTrigger {
            raft,
            leader_contact,
            timing,
            counters,
            eligibility,
            connections: Mutex::default(),
            is_scheduled: AtomicBool::new(false),
            attempted: Mutex::default(),
        }
    }

    fn votes_from(&self) -> Instant {
        self.eligibility.votes_from()
    }

    fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection that a member has opened.
    pub(crate) fn connection_opened(&self, from: u64) -> OpenConnection<'_> {
        *self.connections().entry(from).or_default() += 1;
        OpenConnection { election_trigger: self, from }
    }

    /// Schedules an attempt if this was the last connection of the leader.
    pub(crate) fn connection_closed(self: &Arc<Self>, from: u64) {
        let Some((term, last_contact)) = self.led_by(from) else { return };
        if self.connections().contains_key(&from) || self.is_scheduled.swap(true, Ordering::Relaxed) {
            return;
        }
        let election_trigger = self.clone();
        tokio::spawn(async move {
            let delay = election_trigger.timing.campaign_margin() + election_trigger.own_delay(from);
            let at =
                (last_contact + election_trigger.timing.promise() + delay).max(election_trigger.votes_from());
            tokio::time::sleep_until(at).await;
            election_trigger.is_scheduled.store(false, Ordering::Relaxed);
            election_trigger.attempt(from, term, last_contact, "the leader's connection has ended").await;
        });
    }

    /// Attempts one election for each silence of a leader that exceeds the promise. Runs until the task is aborted.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            let leader = self.raft.metrics().borrow_watched().current_leader;
            let led_by = leader.and_then(|leader| Some((leader, self.led_by(leader)?)));
            let Some((leader, (term, last_contact))) =
                led_by.filter(|(_, (_, last_contact))| !self.was_attempted(*last_contact))
            else {
                tokio::time::sleep(self.timing.heartbeat).await;
                continue;
            };
            // Later than nodes whose connection to the leader has ended: they have better evidence of its failure.
            let delay = self.timing.campaign_margin() + self.timing.heartbeat / 2 + self.own_delay(leader);
            let at = (last_contact + self.timing.promise() + delay).max(self.votes_from());
            tokio::time::sleep_until(at).await;
            self.attempt(leader, term, last_contact, "the leader is silent").await;
        }
    }

    fn was_attempted(&self, last_contact: Instant) -> bool {
        *self.attempted.lock().unwrap_or_else(PoisonError::into_inner) == Some(last_contact)
    }

    /// Stands for election unless the leader was heard since or the term has changed.
    async fn attempt(&self, leader: u64, term: u64, last_contact: Instant, why: &'static str) {
        if self.led_by(leader) != Some((term, last_contact)) || self.was_attempted(last_contact) {
            return;
        }
        *self.attempted.lock().unwrap_or_else(PoisonError::into_inner) = Some(last_contact);
        if !self.eligibility.may_stand() {
            return;
        }
        tracing::info!(leader, term, "{why}: starting an election");
        self.counters.attempts.inc();
        // Raft itself refuses while the promise holds, here and on the other members.
        let _ = self.raft.trigger().elect(true).await;
    }

    /// Handles the leader's goodbye: it has stepped down, so an election need not wait for its lease to end.
    pub(crate) fn leader_resigned(self: &Arc<Self>, from: u64, vote: Vote) {
        if vote.leader_id.node_id != from || self.is_scheduled.swap(true, Ordering::Relaxed) {
            return;
        }
        let election_trigger = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(election_trigger.own_delay(from)).await;
            election_trigger.is_scheduled.store(false, Ordering::Relaxed);
            let (own, current) = {
                let metrics = election_trigger.raft.metrics();
                let metrics = metrics.borrow_watched();
                (metrics.id, metrics.vote)
            };
            if current == vote && election_trigger.eligibility.may_stand() {
                tracing::info!(
                    leader = from,
                    term = vote.leader_id.term,
                    "the leader stops: starting an election"
                );
                election_trigger.counters.attempts.inc();
                let request = TransferLeaderRequest::new(vote, own, None);
                let _ = election_trigger.raft.handle_transfer_leader(request).await;
            }
        });
    }

    /// Returns the term and the last contact if this node follows that leader.
    fn led_by(&self, leader: u64) -> Option<(u64, Instant)> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let last_contact = self.leader_contact.last()?;
        let is_follower = metrics.id != leader && metrics.current_leader == Some(leader);
        is_follower.then_some((metrics.current_term, last_contact))
    }

    /// Returns this node's delay among the followers. They stand for election in the order of their IDs, so that they do not
    /// split the vote.
    fn own_delay(&self, leader: u64) -> Duration {
        let before = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let voters = metrics.membership_config.membership().voter_ids();
            voters.filter(|voter| *voter != leader && *voter < metrics.id).count()
        };
        let stagger = self.timing.campaign_stagger();
        stagger * before as u32 + random_below(stagger / 2)
    }
}
