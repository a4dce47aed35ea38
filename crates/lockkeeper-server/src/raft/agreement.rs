//! Detection of members whose lock tables differ (S13).
//!
//! The table has a hash after each entry (`lockkeeper_core::table_hash`). With its acknowledgements a follower reports the
//! index and hash of the last entry that it has applied, and the leader compares them with its own hash at that index. With
//! its entries the leader sends the last index and hash that a majority shares. A member with another hash at that index is
//! in the minority: it stops serving and logs an error.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper_api::peer;
use lockkeeper_core::mutation::{self, Mutation};
use tokio::sync::Notify;

/// Number of recent hashes that a node keeps. A report about an older entry can't be compared, but a later one can.
const HASHES_KEPT: usize = 4_096;

/// Hash of a table after an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableHash {
    /// Number of the entry. The table counts entries from 1.
    pub index: u64,
    pub hash: u64,
}

impl TableHash {
    pub(crate) fn to_wire(self) -> peer::TableHash {
        peer::TableHash { index: self.index, hash: self.hash }
    }

    pub(crate) fn from_wire(wire: Option<&peer::TableHash>) -> Option<TableHash> {
        wire.map(|wire| TableHash { index: wire.index, hash: wire.hash })
    }
}

/// Difference between two tables that should be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disagreement {
    /// The entry after which it was detected.
    pub index: u64,
    /// Hash of this node's table.
    pub own: u64,
    /// Hash of the other table.
    pub other: u64,
}

impl std::fmt::Display for Disagreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Disagreement { index, own, other } = self;
        write!(f, "after entry {index} the lock table has hash {own:016x} here and {other:016x} there")
    }
}

/// Conclusion of a leader from its members' reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A majority has this node's table, or no member is known to have a different one.
    Serve,
    /// A majority has a different table than this node.
    Minority(Disagreement),
    /// A member has a different table, and it is unknown which one the majority has.
    Undecided(Disagreement),
}

/// This node's knowledge of the tables in the cell.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    inner: Mutex<Inner>,
    /// Whether any difference is known. While there is none, a leader may serve.
    differs: AtomicBool,
    /// Whether a verdict was anything but [`Verdict::Serve`]. What was refused then is repaired by the next tenure only.
    doubted: AtomicBool,
    /// Notified when a difference is found, or ends.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    node_id: u64,
    /// The voters, as of the last membership change that is applied here. More than one group in a joint configuration.
    groups: Vec<BTreeSet<u64>>,
    // Invariant: consecutive indexes.
    own: VecDeque<TableHash>,
    members: BTreeMap<u64, Report>,
    /// The majority's hash, for an entry that is not applied here yet.
    announced: Option<TableHash>,
    /// Set when this node is in the minority.
    stopped: Option<Disagreement>,
}

/// Reports of a member.
#[derive(Debug, Default)]
struct Report {
    /// Its hash for an entry that is not applied here yet.
    early: Option<TableHash>,
    /// The last entry after which its table was equal.
    agreed: Option<u64>,
    differs: Option<Disagreement>,
}

impl Agreement {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn new(node_id: u64) -> Agreement {
        Agreement { inner: Mutex::new(Inner { node_id, ..Inner::default() }), ..Agreement::default() }
    }

    /// Makes a change, and notifies of differences that it found or ended.
    fn update<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner();
        let before = inner.differences();
        let result = change(&mut inner);
        let after = inner.differences();
        if after != before {
            self.differs.store(after > 0, Ordering::Relaxed);
            self.changed.notify_one();
        }
        result
    }

    /// Waits until a difference is found, or ends. For one task only.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Sets the groups of voters.
    pub(crate) fn set_voters(&self, groups: &[BTreeSet<u64>]) {
        self.inner().groups = groups.to_vec();
        // The majority is another one.
        self.changed.notify_one();
    }

    /// Records an entry that this node has applied.
    pub(crate) fn applied(&self, new: TableHash) {
        self.update(|inner| {
            inner.own.push_back(new);
            if inner.own.len() > HASHES_KEPT {
                inner.own.pop_front();
            }
            inner.compare_early(new.index);
        });
    }

    /// Discards everything known about the old table after a snapshot has replaced it.
    pub(crate) fn reset(&self, new: TableHash) {
        self.update(|inner| {
            let (node_id, groups) = (inner.node_id, std::mem::take(&mut inner.groups));
            *inner = Inner { node_id, groups, own: VecDeque::from([new]), ..Inner::default() };
        });
    }

    /// Returns the hash after the last entry that this node has applied.
    pub(crate) fn latest(&self) -> Option<TableHash> {
        self.inner().own.back().copied()
    }

    /// Discards the members' reports at the start of a term: those of earlier terms may be outdated.
    pub(crate) fn forget_reports(&self) {
        self.update(|inner| inner.members.clear());
    }

    /// Handles a member's report of its last applied entry.
    pub(crate) fn report(&self, member: u64, theirs: TableHash) {
        self.update(|inner| match inner.compare(theirs) {
            Compared::Early => inner.members.entry(member).or_default().early = Some(theirs),
            compared => inner.record(member, theirs.index, compared),
        });
    }

    /// Handles the leader's announcement of the majority's hash.
    pub(crate) fn announce(&self, majority: TableHash) {
        self.update(|inner| match inner.compare(majority) {
            Compared::Early => inner.announced = Some(majority),
            Compared::Differs(found) => inner.stop(found),
            Compared::Same | Compared::Unknown => {}
        });
    }

    /// Returns the hash after the last entry at which a majority of every group of voters has this node's table.
    pub(crate) fn majority_hash(&self) -> Option<TableHash> {
        let inner = self.inner();
        let latest = inner.own.back()?.index;
        let agreed = |voter: &u64| match *voter == inner.node_id {
            true => Some(latest),
            false => inner.members.get(voter).and_then(|report| report.agreed),
        };
        let of_group = |voters: &BTreeSet<u64>| {
            let mut indexes: Vec<u64> = voters.iter().filter_map(agreed).collect();
            indexes.sort_unstable_by(|one, other| other.cmp(one));
            indexes.get(voters.len() / 2).copied()
        };
        let mut lowest = latest;
        for voters in &inner.groups {
            lowest = lowest.min(of_group(voters)?);
        }
        inner.own_at(lowest)
    }

    /// Decides whether a leader may serve. While a table differs, it may only serve if a majority is known to have its table.
    pub(crate) fn verdict(&self) -> Verdict {
        let verdict = self.judge();
        if verdict != Verdict::Serve {
            self.doubted.store(true, Ordering::Relaxed);
        }
        verdict
    }

    /// Whether a verdict since the last call was a doubt.
    pub(crate) fn take_doubt(&self) -> bool {
        self.doubted.swap(false, Ordering::Relaxed)
    }

    fn judge(&self) -> Verdict {
        if !self.differs.load(Ordering::Relaxed) || mutation::is_on(Mutation::IgnoreDisagreement) {
            return Verdict::Serve;
        }
        let inner = self.inner();
        if let Some(found) = inner.stopped {
            return Verdict::Minority(found);
        }
        let differs = |voter: &u64| inner.members.get(voter).and_then(|report| report.differs);
        let voters = || inner.groups.iter().flatten();
        let Some(last) = voters().filter_map(differs).max_by_key(|found| found.index) else {
            return Verdict::Serve;
        };
        // An agreement at an earlier entry proves nothing about the difference.
        let agrees = |voter: &u64| {
            *voter == inner.node_id
                || inner.members.get(voter).is_some_and(|report| report.agreed >= Some(last.index))
        };
        let is_majority = |voters: &BTreeSet<u64>, is_one: &dyn Fn(&u64) -> bool| {
            voters.iter().filter(|voter| is_one(voter)).count() > voters.len() / 2
        };
        if inner.groups.iter().all(|voters| is_majority(voters, &agrees)) {
            return Verdict::Serve;
        }
        match inner.groups.iter().any(|voters| is_majority(voters, &|voter| differs(voter).is_some())) {
            true => Verdict::Minority(last),
            false => Verdict::Undecided(last),
        }
    }

    /// Whether this node may save its table as a snapshot or a backup: not while it differs from the majority's, nor while it
    /// is unknown which table the majority has. The last good snapshot must stay, because a restart rebuilds the table from it.
    pub(crate) fn may_save_table(&self) -> bool {
        mutation::is_on(Mutation::SaveDifferingTable) || self.verdict() == Verdict::Serve
    }

    /// Stops serving permanently.
    pub(crate) fn stop(&self, found: Disagreement) {
        self.update(|inner| inner.stop(found));
    }

    /// Returns the disagreement that has stopped this node, if there is one.
    pub(crate) fn stopped(&self) -> Option<Disagreement> {
        self.inner().stopped
    }

    /// Returns how a member's table differs from this node's, if it does. Only on a leader.
    pub(crate) fn difference(&self, member: u64) -> Option<Disagreement> {
        self.inner().members.get(&member).and_then(|report| report.differs)
    }
}

/// Result of comparing another node's hash with this node's.
enum Compared {
    Same,
    Differs(Disagreement),
    /// The entry is not applied here yet.
    Early,
    /// This node no longer keeps its hash of that entry.
    Unknown,
}

impl Inner {
    /// Returns the number of known differences.
    fn differences(&self) -> usize {
        let differing = self.members.values().filter(|report| report.differs.is_some()).count();
        differing + usize::from(self.stopped.is_some())
    }

    fn own_at(&self, index: u64) -> Option<TableHash> {
        let first = self.own.front()?.index;
        let place = usize::try_from(index.checked_sub(first)?).ok()?;
        self.own.get(place).copied()
    }

    fn compare(&self, theirs: TableHash) -> Compared {
        if self.own.back().is_none_or(|latest| latest.index < theirs.index) {
            return Compared::Early;
        }
        match self.own_at(theirs.index) {
            None => Compared::Unknown,
            Some(own) if own.hash == theirs.hash => Compared::Same,
            Some(own) => {
                Compared::Differs(Disagreement { index: own.index, own: own.hash, other: theirs.hash })
            }
        }
    }

    fn record(&mut self, member: u64, index: u64, compared: Compared) {
        let report = self.members.entry(member).or_default();
        match compared {
            Compared::Same => {
                report.agreed = report.agreed.max(Some(index));
                // The member has recovered by a snapshot. A late report from before the difference changes nothing.
                if report.differs.is_some_and(|found| found.index <= index) {
                    report.differs = None;
                    tracing::info!(member, index, "the lock table of a member agrees again");
                }
            }
            Compared::Differs(found) => {
                if report.differs.is_none() {
                    tracing::error!(member, "the lock table of a member differs: {found}");
                }
                report.differs = Some(report.differs.unwrap_or(found));
            }
            Compared::Early | Compared::Unknown => {}
        }
    }

    /// Compares the hashes that arrived before their entries were applied.
    fn compare_early(&mut self, index: u64) {
        if let Some(majority) = self.announced
            && majority.index <= index
        {
            self.announced = None;
            if let Compared::Differs(found) = self.compare(majority) {
                self.stop(found);
            }
        }
        let early: Vec<(u64, TableHash)> = self
            .members
            .iter()
            .filter_map(|(member, report)| {
                Some((*member, report.early.filter(|early| early.index <= index)?))
            })
            .collect();
        for (member, theirs) in early {
            let compared = self.compare(theirs);
            self.record(member, theirs.index, compared);
            if let Some(report) = self.members.get_mut(&member) {
                report.early = None;
            }
        }
    }

    fn stop(&mut self, found: Disagreement) {
        if mutation::is_on(Mutation::IgnoreDisagreement) {
            return;
        }
        if self.stopped.is_none() {
            tracing::error!(
                "the lock table of this node differs from the majority's, it stops serving: {found}. Stop the node, keep its \
                 data folder for analysis, remove the node from the cell, and add it again with an empty data folder"
            );
        }
        self.stopped = Some(self.stopped.unwrap_or(found));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: u64, hash: u64) -> TableHash {
        TableHash { index, hash }
    }

    /// Returns a leader that has applied ten entries. The hash of each is its index.
    fn leader() -> Agreement {
        let agreement = Agreement::new(1);
        agreement.set_voters(&[BTreeSet::from([1, 2, 3])]);
        (1..=10).for_each(|index| agreement.applied(at(index, index)));
        agreement
    }

    #[test]
    fn a_leader_serves_while_no_member_is_known_to_differ() {
        let agreement = leader();
        assert_eq!(agreement.verdict(), Verdict::Serve);
        assert_eq!(agreement.majority_hash(), None, "no member has reported");
        agreement.report(2, at(7, 7));
        assert_eq!(agreement.majority_hash(), Some(at(7, 7)));
        agreement.report(3, at(9, 9));
        assert_eq!(agreement.majority_hash(), Some(at(9, 9)));
    }

    #[test]
    fn a_differing_member_stops_the_leader_until_a_majority_is_known_to_agree() {
        let agreement = leader();
        agreement.report(2, at(7, 7));
        agreement.report(3, at(9, 99));
        let found = Disagreement { index: 9, own: 9, other: 99 };
        assert_eq!(agreement.verdict(), Verdict::Undecided(found), "7 is before the difference");
        agreement.report(2, at(9, 9));
        assert_eq!(agreement.verdict(), Verdict::Serve);
        assert_eq!(agreement.difference(3), Some(found));
        assert_eq!(agreement.majority_hash(), Some(at(9, 9)));
        agreement.report(3, at(10, 10));
        assert_eq!(agreement.difference(3), None, "it got a snapshot");
    }

    #[test]
    fn a_leader_whose_table_differs_from_the_majority_is_in_the_minority() {
        let agreement = leader();
        agreement.report(2, at(9, 99));
        agreement.report(3, at(9, 99));
        let found = Disagreement { index: 9, own: 9, other: 99 };
        assert_eq!(agreement.verdict(), Verdict::Minority(found));
        agreement.forget_reports();
        assert_eq!(agreement.verdict(), Verdict::Serve);
    }

    #[test]
    fn a_report_about_an_entry_that_is_not_applied_yet_is_compared_later() {
        let agreement = leader();
        agreement.report(2, at(12, 12));
        agreement.report(3, at(11, 99));
        assert_eq!(agreement.verdict(), Verdict::Serve);
        agreement.applied(at(11, 11));
        assert!(matches!(agreement.verdict(), Verdict::Undecided(_)));
        agreement.applied(at(12, 12));
        assert_eq!(agreement.verdict(), Verdict::Serve);
    }

    #[test]
    fn a_follower_that_differs_from_the_majority_stops_until_it_gets_a_snapshot() {
        let follower = leader();
        follower.announce(at(10, 10));
        follower.announce(at(11, 99));
        assert_eq!(follower.stopped(), None, "not applied yet");
        follower.applied(at(11, 11));
        assert_eq!(follower.stopped(), Some(Disagreement { index: 11, own: 11, other: 99 }));
        follower.reset(at(20, 200));
        assert_eq!(follower.stopped(), None);
        follower.announce(at(5, 999));
        assert_eq!(follower.stopped(), None, "its own hash of that entry is not known any more");
    }

    #[test]
    fn a_table_that_may_be_wrong_is_not_saved() {
        let leader = leader();
        assert!(leader.may_save_table());
        leader.report(2, at(9, 99));
        assert!(!leader.may_save_table(), "it is unknown whose table is wrong");
        leader.report(3, at(10, 10));
        assert!(leader.may_save_table(), "a majority has this one");
        leader.stop(Disagreement { index: 10, own: 10, other: 99 });
        assert!(!leader.may_save_table());
    }

    #[test]
    fn a_single_node_always_serves() {
        let agreement = leader();
        agreement.set_voters(&[BTreeSet::from([1])]);
        assert_eq!(agreement.verdict(), Verdict::Serve);
        assert_eq!(agreement.majority_hash(), Some(at(10, 10)));
    }
}
