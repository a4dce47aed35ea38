//! Acknowledgements from which the leader's lease is computed: for each member, when the last acknowledged request was sent and the
//! promise in its answer.
//!
//! openraft counts acknowledgements too, but by log ID: the answer to an old request also acknowledges later requests without new
//! entries. A leader that was paused while an answer was in flight would get a fresh lease from it when it resumed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::types::Vote;

/// Maximum clock drift: one percent and two milliseconds.
const DRIFT_PERCENT: u32 = 1;
const DRIFT_MORE: Duration = Duration::from_millis(2);

/// Returns the part of a promise that the leader can rely on by its own clock.
pub(crate) fn safe_part(promise: Duration) -> Duration {
    promise.saturating_sub(promise * DRIFT_PERCENT / 100 + DRIFT_MORE)
}

/// The acknowledgements of all members.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    by_member: Mutex<BTreeMap<u64, Ack>>,
}

/// The acknowledgements of one member to one leader.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ack {
    /// The leader's vote when the request was sent.
    vote: Vote,
    /// Send time of the latest request that the member has acknowledged.
    pub(crate) sent: Instant,
    /// The latest promise: the time after a request in which the member neither votes nor stands for election.
    promise: Duration,
    // Invariant: the latest end of all its promises, less drift. A member that was restarted with a shorter promise keeps its earlier
    // one (`raft/promise.rs`).
    pub(crate) promised_until: Instant,
}

impl Acks {
    fn by_member(&self) -> MutexGuard<'_, BTreeMap<u64, Ack>> {
        self.by_member.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the member has accepted a request of the leader with this vote, sent at `sent`, and has promised to follow no
    /// other leader for `promise` after that.
    pub(crate) fn record(&self, member: u64, vote: Vote, sent: Instant, promise: Duration) {
        let promised_until = sent + safe_part(promise);
        let mut by_member = self.by_member();
        match by_member.get_mut(&member) {
            Some(old) if old.vote == vote => {
                old.sent = old.sent.max(sent);
                old.promise = promise;
                old.promised_until = old.promised_until.max(promised_until);
            }
            Some(old) if old.vote > vote => {}
            _ => drop(by_member.insert(member, Ack { vote, sent, promise, promised_until })),
        }
    }

    /// Returns the shortest promise of those among `voters` that have acknowledged a request of this leader.
    pub(crate) fn shortest_promise(&self, vote: Vote, voters: impl Iterator<Item = u64>) -> Option<Duration> {
        let by_member = self.by_member();
        let promises = voters.filter_map(|voter| by_member.get(&voter).filter(|ack| ack.vote == vote));
        promises.map(|ack| ack.promise).min()
    }

    /// Returns the latest moment that a majority of every group of voters reaches. `moment` maps an acknowledgement of this leader to
    /// the moment that its member reaches; the leader itself reaches `of_leader`.
    pub(crate) fn majority(
        &self,
        (own, of_leader): (u64, Instant),
        vote: Vote,
        groups: &[BTreeSet<u64>],
        moment: impl Fn(&Ack) -> Option<Instant>,
    ) -> Option<Instant> {
        let by_member = self.by_member();
        let reached = |voter: &u64| match by_member.get(voter) {
            _ if *voter == own => Some(of_leader),
            Some(ack) if ack.vote == vote => moment(ack),
            _ => None,
        };
        let of_group = |voters: &BTreeSet<u64>| {
            let mut moments: Vec<Instant> = voters.iter().filter_map(reached).collect();
            moments.sort_unstable_by(|one, other| other.cmp(one));
            moments.get(voters.len() / 2).copied()
        };
        let mut all = None;
        for voters in groups {
            let of_group = of_group(voters)?;
            all = Some(all.map_or(of_group, |all: Instant| all.min(of_group)));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(term: u64) -> Vote {
        Vote::new_committed(term, 1)
    }

    fn group(voters: &[u64]) -> BTreeSet<u64> {
        voters.iter().copied().collect()
    }

    const TICK: Duration = Duration::from_millis(100);
    const SHORT: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_millis(3_000);

    fn since(acks: &Acks, term: u64, groups: &[BTreeSet<u64>]) -> Option<Instant> {
        acks.majority((1, Instant::now()), vote(term), groups, |ack| Some(ack.sent))
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_request_or_another_term_does_not_extend_an_acknowledgement() {
        let acks = Acks::default();
        let groups = [group(&[1, 2, 3])];
        let first = Instant::now();
        let second = first + 40 * TICK;
        assert_eq!(since(&acks, 2, &groups), None);
        acks.record(2, vote(2), second, SHORT);
        acks.record(2, vote(2), first, SHORT);
        tokio::time::advance(50 * TICK).await;
        assert_eq!(since(&acks, 2, &groups), Some(second));
        // A late answer to the previous leader.
        acks.record(2, vote(1), Instant::now(), SHORT);
        assert_eq!((since(&acks, 1, &groups), since(&acks, 2, &groups)), (None, Some(second)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_majority_of_every_group_is_required() {
        let acks = Acks::default();
        let began = Instant::now();
        for member in 2..=5 {
            tokio::time::advance(TICK).await;
            acks.record(member, vote(1), Instant::now(), SHORT);
        }
        let since =
            |groups: &[BTreeSet<u64>]| since(&acks, 1, groups).map(|since| (since - began).as_millis() / 100);
        assert_eq!(since(&[group(&[1])]), Some(4), "a single voter is its own majority");
        assert_eq!(since(&[group(&[1, 2])]), Some(1));
        assert_eq!(since(&[group(&[1, 2, 3])]), Some(2));
        assert_eq!(since(&[group(&[1, 2, 3, 4, 5])]), Some(3));
        assert_eq!(since(&[group(&[2, 3, 4])]), Some(2), "a leader that is being removed is not a voter");
        assert_eq!(
            since(&[group(&[1, 4, 5]), group(&[1, 2, 3])]),
            Some(2),
            "in a joint configuration both groups count"
        );
        assert_eq!(since(&[group(&[1, 2, 3]), group(&[1, 6, 7])]), None);
        assert_eq!(since(&[]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn each_members_own_promise_counts() {
        let acks = Acks::default();
        let now = Instant::now();
        let forever = now + Duration::from_secs(3_600);
        let until = |groups: &[BTreeSet<u64>]| {
            acks.majority((1, forever), vote(1), groups, |ack| Some(ack.promised_until))
                .map(|until| until.saturating_duration_since(now))
        };
        acks.record(2, vote(1), now, SHORT);
        assert_eq!(until(&[group(&[1, 2, 3])]), Some(safe_part(SHORT)));
        // One of two followers is enough, so the longer promise counts. Of four, two are needed.
        acks.record(3, vote(1), now, LONG);
        assert_eq!(until(&[group(&[1, 2, 3])]), Some(safe_part(LONG)));
        acks.record(4, vote(1), now, SHORT);
        assert_eq!(until(&[group(&[1, 2, 3, 4, 5])]), Some(safe_part(SHORT)));
        assert_eq!(acks.shortest_promise(vote(1), [2, 3].into_iter()), Some(SHORT));
        assert_eq!(acks.shortest_promise(vote(1), [3, 9].into_iter()), Some(LONG));
        // A shorter promise does not cancel an earlier one.
        acks.record(3, vote(1), now + TICK, SHORT);
        assert_eq!(until(&[group(&[1, 2, 3])]), Some(safe_part(LONG)));
    }
}
