//! When each member was last sent something that it has acknowledged, request by request: what the leader's lease is
//! made of.
//!
//! openraft counts this too, but by log ids: an answer to an old request also acknowledges later ones that bring nothing
//! new. A leader that was stopped with an answer on its way, and then woke up, had a fresh lease from it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::types::Vote;

/// What the members have acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    by_member: Mutex<BTreeMap<u64, Ack>>,
}

#[derive(Debug, Clone, Copy)]
struct Ack {
    /// As whose leader it was sent.
    vote: Vote,
    sent: Instant,
}

impl Acks {
    fn by_member(&self) -> MutexGuard<'_, BTreeMap<u64, Ack>> {
        self.by_member.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acknowledged(&self, member: u64, new: Ack) {
        let mut by_member = self.by_member();
        match by_member.get_mut(&member) {
            Some(old) if old.vote == new.vote => old.sent = old.sent.max(new.sent),
            Some(old) if old.vote > new.vote => {}
            _ => drop(by_member.insert(member, new)),
        }
    }

    /// The latest moment since which a majority of every group of voters has acknowledged something of this leader; the
    /// leader itself has until now.
    pub(crate) fn majority_since(
        &self,
        own: u64,
        vote: Vote,
        groups: &[BTreeSet<u64>],
        now: Instant,
    ) -> Option<Instant> {
        let by_member = self.by_member();
        let last = |voter: &u64| match by_member.get(voter) {
            _ if *voter == own => Some(now),
            Some(ack) if ack.vote == vote => Some(ack.sent),
            _ => None,
        };
        let of_group = |voters: &BTreeSet<u64>| {
            let mut moments: Vec<Instant> = voters.iter().filter_map(last).collect();
            moments.sort_unstable_by(|one, other| other.cmp(one));
            moments.get(voters.len() / 2).copied()
        };
        let mut since = None;
        for voters in groups {
            let of_group = of_group(voters)?;
            since = Some(since.map_or(of_group, |since: Instant| since.min(of_group)));
        }
        since
    }
}

/// The requests of one stream to a member that wait for their answers, the oldest first: they are answered in order.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    acks: Arc<Acks>,
    member: u64,
    waiting: Arc<Mutex<VecDeque<Ack>>>,
}

impl Sent {
    pub(crate) fn new(acks: Arc<Acks>, member: u64) -> Sent {
        Sent { acks, member, waiting: Arc::default() }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Ack>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is about to be sent.
    pub(crate) fn request(&self, vote: Vote) {
        self.waiting().push_back(Ack { vote, sent: Instant::now() });
    }

    /// The oldest request was answered.
    pub(crate) fn answered(&self, accepted: bool) {
        let oldest = self.waiting().pop_front();
        if let (Some(oldest), true) = (oldest, accepted) {
            self.acks.acknowledged(self.member, oldest);
        }
    }

    /// Whether nothing waits for an answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn vote(term: u64) -> Vote {
        Vote::new_committed(term, 1)
    }

    fn group(voters: &[u64]) -> BTreeSet<u64> {
        voters.iter().copied().collect()
    }

    const TICK: Duration = Duration::from_millis(100);

    #[tokio::test(start_paused = true)]
    async fn an_answer_acknowledges_its_own_request_and_no_later_one() {
        let acks = Arc::new(Acks::default());
        let stream = Sent::new(acks.clone(), 2);
        let groups = [group(&[1, 2, 3])];
        let since = || acks.majority_since(1, vote(1), &groups, Instant::now());
        stream.request(vote(1));
        let first = Instant::now();
        // It is stopped, and wakes up: it sends the next one, and finds the answer to the first.
        tokio::time::advance(40 * TICK).await;
        stream.request(vote(1));
        let second = Instant::now();
        assert_eq!(since(), None);
        stream.answered(true);
        assert_eq!(since(), Some(first));
        assert!(!stream.is_idle());
        stream.answered(true);
        assert_eq!(since(), Some(second));
        assert!(stream.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_and_another_term_acknowledge_nothing() {
        let acks = Arc::new(Acks::default());
        let stream = Sent::new(acks.clone(), 2);
        let since = |term| acks.majority_since(1, vote(term), &[group(&[1, 2, 3])], Instant::now());
        stream.request(vote(1));
        stream.answered(false);
        assert_eq!(since(1), None);
        stream.request(vote(2));
        stream.answered(true);
        assert_eq!((since(1), since(2).is_some()), (None, true));
        // A late answer to the leader of before.
        stream.request(vote(1));
        stream.answered(true);
        assert!(since(2).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn it_takes_a_majority_of_all_groups() {
        let acks = Arc::new(Acks::default());
        let began = Instant::now();
        for member in 2..=5 {
            tokio::time::advance(TICK).await;
            let stream = Sent::new(acks.clone(), member);
            stream.request(vote(1));
            stream.answered(true);
        }
        let now = Instant::now();
        let since = |groups: &[BTreeSet<u64>]| {
            acks.majority_since(1, vote(1), groups, now).map(|since| (since - began).as_millis() / 100)
        };
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
}
