//! The acknowledgements that the leader's lease is computed from: for each member, when the last acknowledged request was sent and what
//! the member promised with its answer.
//!
//! openraft counts acknowledgements too, but by log id: the answer to an old request also acknowledges later requests without new
//! entries. A leader that was stopped while an answer was under way got a fresh lease from it when it woke up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::types::Vote;

/// Clocks may run apart by one percent and two milliseconds.
const DRIFT_PERCENT: u32 = 1;
const DRIFT_MORE: Duration = Duration::from_millis(2);

/// The part of a promise that the leader can rely on, by its own clock.
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
    /// As whose leader it was sent.
    vote: Vote,
    /// When the latest request that it has acknowledged was sent.
    pub(crate) sent: Instant,
    /// The latest promise: how long after a request the member neither votes nor stands for election.
    promise: Duration,
    // Invariant: the latest end of all its promises, less drift. A member that was restarted with a shorter promise keeps the one that it
    // gave before (`raft/promise.rs`).
    pub(crate) promised_until: Instant,
}

impl Acks {
    fn by_member(&self) -> MutexGuard<'_, BTreeMap<u64, Ack>> {
        self.by_member.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member has accepted a request that was sent at this moment as the leader of this vote, and has promised to follow nobody
    /// else for this long after it.
    pub(crate) fn accepted(&self, member: u64, vote: Vote, sent: Instant, promise: Duration) {
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

    /// The shortest promise among these members, of those that have acknowledged something of this leader.
    pub(crate) fn shortest_promise(&self, vote: Vote, voters: impl Iterator<Item = u64>) -> Option<Duration> {
        let by_member = self.by_member();
        let promises = voters.filter_map(|voter| by_member.get(&voter).filter(|ack| ack.vote == vote));
        promises.map(|ack| ack.promise).min()
    }

    /// The latest moment that a majority of every group of voters reaches, where `moment` says how far an acknowledgement of this
    /// leader goes. The leader itself reaches `of_leader`.
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
    async fn an_older_request_and_another_term_acknowledge_nothing_new() {
        let acks = Acks::default();
        let groups = [group(&[1, 2, 3])];
        let first = Instant::now();
        let second = first + 40 * TICK;
        assert_eq!(since(&acks, 2, &groups), None);
        acks.accepted(2, vote(2), second, SHORT);
        acks.accepted(2, vote(2), first, SHORT);
        tokio::time::advance(50 * TICK).await;
        assert_eq!(since(&acks, 2, &groups), Some(second));
        // A late answer to the leader of before.
        acks.accepted(2, vote(1), Instant::now(), SHORT);
        assert_eq!((since(&acks, 1, &groups), since(&acks, 2, &groups)), (None, Some(second)));
    }

    #[tokio::test(start_paused = true)]
    async fn it_takes_a_majority_of_all_groups() {
        let acks = Acks::default();
        let began = Instant::now();
        for member in 2..=5 {
            tokio::time::advance(TICK).await;
            acks.accepted(member, vote(1), Instant::now(), SHORT);
        }
        let since =
            |groups: &[BTreeSet<u64>]| since(&acks, 1, groups).map(|since| (since - began).as_millis() / 100);
        assert_eq!(since(&[group(&[1])]), Some(4), "alone, it is its own majority");
        assert_eq!(since(&[group(&[1, 2])]), Some(1));
        assert_eq!(since(&[group(&[1, 2, 3])]), Some(2));
        assert_eq!(since(&[group(&[1, 2, 3, 4, 5])]), Some(3));
        assert_eq!(since(&[group(&[2, 3, 4])]), Some(2), "one that leaves is no voter");
        assert_eq!(
            since(&[group(&[1, 4, 5]), group(&[1, 2, 3])]),
            Some(2),
            "while members change, both count"
        );
        assert_eq!(since(&[group(&[1, 2, 3]), group(&[1, 6, 7])]), None);
        assert_eq!(since(&[]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_promise_counts_for_as_long_as_its_member_gave_it() {
        let acks = Acks::default();
        let now = Instant::now();
        let forever = now + Duration::from_secs(3_600);
        let until = |groups: &[BTreeSet<u64>]| {
            acks.majority((1, forever), vote(1), groups, |ack| Some(ack.promised_until))
                .map(|until| until.saturating_duration_since(now))
        };
        acks.accepted(2, vote(1), now, SHORT);
        assert_eq!(until(&[group(&[1, 2, 3])]), Some(safe_part(SHORT)));
        // One of the two followers is enough, so the longer promise counts; of four, two are needed.
        acks.accepted(3, vote(1), now, LONG);
        assert_eq!(until(&[group(&[1, 2, 3])]), Some(safe_part(LONG)));
        acks.accepted(4, vote(1), now, SHORT);
        assert_eq!(until(&[group(&[1, 2, 3, 4, 5])]), Some(safe_part(SHORT)));
        assert_eq!(acks.shortest_promise(vote(1), [2, 3].into_iter()), Some(SHORT));
        assert_eq!(acks.shortest_promise(vote(1), [3, 9].into_iter()), Some(LONG));
        // A shorter promise does not take back one that was given before.
        acks.accepted(3, vote(1), now + TICK, SHORT);
        assert_eq!(until(&[group(&[1, 2, 3])]), Some(safe_part(LONG)));
    }
}
