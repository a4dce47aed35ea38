//! Whether this node may vote, start elections and send heartbeats. Three things forbid some of it, and they overlap: a promise
//! of an earlier process that may still hold, a lock table that differs from the majority's (S13), and a leader that pauses its
//! heartbeats because it has lost its quorum. So each is recorded on its own, and what is allowed follows from all of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// What this node may do in elections.
#[derive(Debug)]
pub(crate) struct Eligibility {
    /// Before this time the node neither votes nor stands for election: it may have promised that before it was restarted.
    votes_from: Instant,
    /// Its lock table differs, or it may not be known to be equal: it must not lead.
    is_stopped: AtomicBool,
    pauses_heartbeats: AtomicBool,
}

impl Eligibility {
    /// Creates the state of a node that may have promised before its start not to vote for this time.
    pub(crate) fn new(silent_for: Duration) -> Eligibility {
        Eligibility {
            votes_from: Instant::now() + silent_for,
            is_stopped: AtomicBool::new(false),
            pauses_heartbeats: AtomicBool::new(false),
        }
    }

    /// Allows or forbids this node to lead.
    pub(crate) fn set_stopped(&self, is_stopped: bool) {
        self.is_stopped.store(is_stopped, Ordering::Relaxed);
    }

    /// Pauses or resumes the heartbeats of this leader.
    pub(crate) fn pause_heartbeats(&self, pauses: bool) {
        self.pauses_heartbeats.store(pauses, Ordering::Relaxed);
    }

    /// Returns when all promises of an earlier process have expired.
    pub(crate) fn votes_from(&self) -> Instant {
        self.votes_from
    }

    /// Reports whether all promises of an earlier process have expired.
    pub(crate) fn may_vote(&self) -> bool {
        Instant::now() >= self.votes_from
    }

    /// Reports whether this node may lead.
    pub(crate) fn may_lead(&self) -> bool {
        !self.is_stopped.load(Ordering::Relaxed)
    }

    /// Reports whether this node may start elections.
    pub(crate) fn may_stand(&self) -> bool {
        self.may_vote() && self.may_lead()
    }

    /// Reports whether this node may send heartbeats, if it leads.
    pub(crate) fn may_send_heartbeats(&self) -> bool {
        self.may_lead() && !self.pauses_heartbeats.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_millis(300);

    #[tokio::test(start_paused = true)]
    async fn restarted_node_keeps_its_silence_although_it_becomes_eligible_meanwhile() {
        let eligibility = Eligibility::new(SILENCE);
        eligibility.set_stopped(true);
        eligibility.set_stopped(false);
        assert!(eligibility.may_lead() && !eligibility.may_vote() && !eligibility.may_stand());
        tokio::time::advance(SILENCE).await;
        assert!(eligibility.may_vote() && eligibility.may_stand());
    }

    #[tokio::test(start_paused = true)]
    async fn stopped_node_stays_silent_after_its_pauses() {
        let eligibility = Eligibility::new(SILENCE);
        eligibility.pause_heartbeats(true);
        assert!(!eligibility.may_send_heartbeats());
        eligibility.set_stopped(true);
        eligibility.pause_heartbeats(false);
        tokio::time::advance(SILENCE).await;
        assert!(!eligibility.may_send_heartbeats() && !eligibility.may_stand());
        eligibility.set_stopped(false);
        assert!(eligibility.may_send_heartbeats() && eligibility.may_stand());
    }
}
