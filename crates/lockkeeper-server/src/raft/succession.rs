//! When this node stands for election before raft's own timeout: once after the leader's connection has ended or the leader has been
//! silent for longer than the promise to it, and at once if it has said goodbye.
//!
//! A connection can end, and a message can be late, while the leader is well. So there is one attempt for each silence, at the end of
//! this node's promise, and it is dropped if the leader was heard again or another election has begun. It asks by pre-vote: members that
//! hear the leader refuse. Everything else is left to raft's own random timeout.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use tokio::time::Instant;

use super::Raft;
use super::heard::Heard;
use super::network::random_below;
use super::timing::Timing;
use super::types::Vote;
use crate::metrics::MemberCounters;

/// Watches the connections of the other members.
pub(crate) struct Succession {
    raft: Raft,
    heard: Arc<Heard>,
    timing: Timing,
    counters: MemberCounters,
    /// Until then this node neither votes nor stands: before it was restarted it may have promised a leader not to.
    votes_from: Instant,
    /// Connections by the member that has opened them.
    connections: Mutex<BTreeMap<u64, usize>>,
    // Invariant: the end of a connection, or a goodbye, has at most one attempt scheduled.
    is_scheduled: AtomicBool,
    /// When the leader was last heard before the latest attempt: there is one for each silence.
    attempted: Mutex<Option<Instant>>,
}

/// A connection of a member, for as long as it is there.
pub(crate) struct Arrived<'a> {
    succession: &'a Succession,
    from: u64,
}

impl Drop for Arrived<'_> {
    fn drop(&mut self) {
        let mut connections = self.succession.connections();
        if let Some(count) = connections.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                connections.remove(&self.from);
            }
        }
    }
}

impl Succession {
    pub(crate) fn new(
        raft: Raft,
        heard: Arc<Heard>,
        timing: Timing,
        counters: MemberCounters,
        silent_for: Duration,
    ) -> Succession {
        Succession {
            raft,
            heard,
            timing,
            counters,
            votes_from: Instant::now() + silent_for,
            connections: Mutex::default(),
            is_scheduled: AtomicBool::new(false),
            attempted: Mutex::default(),
        }
    }

    /// Whether no promise of an earlier process can hold any more.
    pub(crate) fn may_vote(&self) -> bool {
        Instant::now() >= self.votes_from
    }

    fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A member has opened a connection.
    pub(crate) fn arrived(&self, from: u64) -> Arrived<'_> {
        *self.connections().entry(from).or_default() += 1;
        Arrived { succession: self, from }
    }

    /// A connection of this member has ended. If it was the leader's last one, an attempt is scheduled.
    pub(crate) fn left(self: &Arc<Self>, from: u64) {
        let Some((term, heard)) = self.led_by(from) else { return };
        if self.connections().contains_key(&from) || self.is_scheduled.swap(true, Ordering::Relaxed) {
            return;
        }
        let succession = self.clone();
        tokio::spawn(async move {
            let delay = succession.timing.stand_margin() + succession.own_turn(from);
            let at = (heard + succession.timing.promise() + delay).max(succession.votes_from);
            tokio::time::sleep_until(at).await;
            succession.is_scheduled.store(false, Ordering::Relaxed);
            succession.attempt(from, term, heard, "the connection of the leader has ended").await;
        });
    }

    /// Stands once for each silence of a leader that is longer than the promise to it. Runs until it is aborted.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            let leader = self.raft.metrics().borrow_watched().current_leader;
            let led_by = leader.and_then(|leader| Some((leader, self.led_by(leader)?)));
            let Some((leader, (term, heard))) = led_by.filter(|(_, (_, heard))| !self.was_attempted(*heard))
            else {
                tokio::time::sleep(self.timing.heartbeat).await;
                continue;
            };
            // After those whose connection to the leader has ended: they know more.
            let delay = self.timing.stand_margin() + self.timing.heartbeat / 2 + self.own_turn(leader);
            let at = (heard + self.timing.promise() + delay).max(self.votes_from);
            tokio::time::sleep_until(at).await;
            self.attempt(leader, term, heard, "the leader is silent").await;
        }
    }

    fn was_attempted(&self, heard: Instant) -> bool {
        *self.attempted.lock().unwrap_or_else(PoisonError::into_inner) == Some(heard)
    }

    /// Stands for election, if nothing has been heard since and nobody else has stood.
    async fn attempt(&self, leader: u64, term: u64, heard: Instant, why: &'static str) {
        if self.led_by(leader) != Some((term, heard)) || self.was_attempted(heard) {
            return;
        }
        *self.attempted.lock().unwrap_or_else(PoisonError::into_inner) = Some(heard);
        tracing::info!(leader, term, "{why}: standing for election");
        self.counters.attempts.inc();
        // Raft itself refuses as long as the promise holds, here and at the other members.
        let _ = self.raft.trigger().elect(true).await;
    }

    /// The leader has said goodbye: it has left office, so nobody has to wait for its lease to end.
    pub(crate) fn said_goodbye(self: &Arc<Self>, from: u64, vote: Vote) {
        if vote.leader_id.node_id != from || self.is_scheduled.swap(true, Ordering::Relaxed) {
            return;
        }
        let succession = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(succession.own_turn(from)).await;
            succession.is_scheduled.store(false, Ordering::Relaxed);
            let (own, current) = {
                let metrics = succession.raft.metrics();
                let metrics = metrics.borrow_watched();
                (metrics.id, metrics.vote)
            };
            if current == vote && succession.may_vote() {
                tracing::info!(
                    leader = from,
                    term = vote.leader_id.term,
                    "the leader stops: standing for election"
                );
                succession.counters.attempts.inc();
                let request = TransferLeaderRequest::new(vote, own, None);
                let _ = succession.raft.handle_transfer_leader(request).await;
            }
        });
    }

    /// The term and when the leader was last heard, if this member leads.
    fn led_by(&self, leader: u64) -> Option<(u64, Instant)> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let heard = self.heard.last()?;
        let is_follower = metrics.id != leader && metrics.current_leader == Some(leader);
        is_follower.then_some((metrics.current_term, heard))
    }

    /// The followers stand one after the other, in the order of their ids, so that they do not split the votes.
    fn own_turn(&self, leader: u64) -> Duration {
        let before = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let voters = metrics.membership_config.membership().voter_ids();
            voters.filter(|voter| *voter != leader && *voter < metrics.id).count()
        };
        let apart = self.timing.stand_apart();
        apart * before as u32 + random_below(apart / 2)
    }
}
