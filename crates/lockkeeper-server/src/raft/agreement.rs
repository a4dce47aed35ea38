//! Whether the members have the same lock table (S13).
//!
//! After each entry the table has a hash (`lockkeeper_core::table_hash`). With its acknowledgements a follower reports the
//! index and hash of the last entry that it has applied; the leader compares them with its own at that index. With its
//! entries the leader sends the last index and hash that a majority has in common; a member that has another hash there is
//! in the minority. It stops serving and says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper_api::peer;
use lockkeeper_core::mutation::{self, Mutation};

/// Hashes of this node's last entries. A report about an older entry cannot be compared any more: the next one will be.
const HASHES_KEPT: usize = 4_096;

/// The hash of a table after an entry. Entries are counted as the table does, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableHash {
    /// The entry.
    pub index: u64,
    /// The hash.
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

/// Two tables that should be the same are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disagreement {
    /// The entry after which it was noticed.
    pub index: u64,
    /// The hash of this node's table.
    pub own: u64,
    /// The hash of the other one.
    pub other: u64,
}

impl std::fmt::Display for Disagreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Disagreement { index, own, other } = self;
        write!(f, "after entry {index} the lock table has hash {own:016x} here and {other:016x} there")
    }
}

/// What follows for a leader from what its members report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A majority has this node's table, or nobody is known to have another one.
    Serve,
    /// A majority has another table than this node.
    Minority(Disagreement),
    /// Somebody has another table, and it is not known what the majority has.
    Undecided(Disagreement),
}

/// What this node knows about the tables of the cell.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    node_id: u64,
    /// The voters, as of the last change of members that is applied here: more than one group while they change.
    groups: Vec<BTreeSet<u64>>,
    // Invariant: indexes rise by one.
    own: VecDeque<TableHash>,
    members: BTreeMap<u64, Report>,
    /// What the majority has, for an entry that is not applied here yet.
    announced: Option<TableHash>,
    /// This node is in the minority.
    stopped: Option<Disagreement>,
}

/// What a member has reported.
#[derive(Debug, Default)]
struct Report {
    /// For an entry that is not applied here yet.
    early: Option<TableHash>,
    /// The last entry after which its table was the same.
    agreed: Option<u64>,
    differs: Option<Disagreement>,
}

impl Agreement {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn new(node_id: u64) -> Agreement {
        Agreement { inner: Mutex::new(Inner { node_id, ..Inner::default() }) }
    }

    /// Who votes.
    pub(crate) fn set_voters(&self, groups: &[BTreeSet<u64>]) {
        self.inner().groups = groups.to_vec();
    }

    /// This node has applied an entry.
    pub(crate) fn applied(&self, new: TableHash) {
        let mut inner = self.inner();
        inner.own.push_back(new);
        if inner.own.len() > HASHES_KEPT {
            inner.own.pop_front();
        }
        inner.compare_early(new.index);
    }

    /// This node's table was replaced by that of a snapshot: what was known about the old one is void.
    pub(crate) fn replaced(&self, new: TableHash) {
        let mut inner = self.inner();
        let (node_id, groups) = (inner.node_id, std::mem::take(&mut inner.groups));
        *inner = Inner { node_id, groups, own: VecDeque::from([new]), ..Inner::default() };
    }

    /// The last entry that this node has applied.
    pub(crate) fn latest(&self) -> Option<TableHash> {
        self.inner().own.back().copied()
    }

    /// A new term begins: what members reported in earlier ones may be outdated.
    pub(crate) fn forget_reports(&self) {
        self.inner().members.clear();
    }

    /// A member reports what it has applied.
    pub(crate) fn report(&self, member: u64, theirs: TableHash) {
        let mut inner = self.inner();
        match inner.differs(theirs) {
            Compared::Early => inner.members.entry(member).or_default().early = Some(theirs),
            compared => inner.note(member, theirs.index, compared),
        }
    }

    /// The leader tells what a majority has.
    pub(crate) fn announce(&self, majority: TableHash) {
        let mut inner = self.inner();
        match inner.differs(majority) {
            Compared::Early => inner.announced = Some(majority),
            Compared::Differs(found) => inner.stop(found),
            Compared::Same | Compared::Unknown => {}
        }
    }

    /// The last entry after which a majority of every group of voters has this node's table.
    pub(crate) fn of_majority(&self) -> Option<TableHash> {
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

    /// Whether a leader may serve. It may not while a table differs, unless a majority is known to have its own.
    pub(crate) fn verdict(&self) -> Verdict {
        let inner = self.inner();
        if mutation::is_on(Mutation::IgnoreDisagreement) {
            return Verdict::Serve;
        }
        if let Some(found) = inner.stopped {
            return Verdict::Minority(found);
        }
        let differs = |voter: &u64| inner.members.get(voter).and_then(|report| report.differs);
        let voters = || inner.groups.iter().flatten();
        let Some(last) = voters().filter_map(differs).max_by_key(|found| found.index) else {
            return Verdict::Serve;
        };
        // Who agreed before the difference was there says nothing about it.
        let agrees = |voter: &u64| {
            *voter == inner.node_id
                || inner.members.get(voter).is_some_and(|report| report.agreed >= Some(last.index))
        };
        let most = |voters: &BTreeSet<u64>, is_one: &dyn Fn(&u64) -> bool| {
            voters.iter().filter(|voter| is_one(voter)).count() > voters.len() / 2
        };
        if inner.groups.iter().all(|voters| most(voters, &agrees)) {
            return Verdict::Serve;
        }
        match inner.groups.iter().any(|voters| most(voters, &|voter| differs(voter).is_some())) {
            true => Verdict::Minority(last),
            false => Verdict::Undecided(last),
        }
    }

    /// This node stops serving.
    pub(crate) fn stop(&self, found: Disagreement) {
        self.inner().stop(found);
    }

    /// Why this node has stopped serving, if it has.
    pub(crate) fn stopped(&self) -> Option<Disagreement> {
        self.inner().stopped
    }

    /// On a leader: how a member's table differs from this node's, if it does.
    pub(crate) fn differs(&self, member: u64) -> Option<Disagreement> {
        self.inner().members.get(&member).and_then(|report| report.differs)
    }
}

/// A hash of somebody else beside our own.
enum Compared {
    Same,
    Differs(Disagreement),
    /// The entry is not applied here yet.
    Early,
    /// Our own hash of that entry is no longer kept.
    Unknown,
}

impl Inner {
    fn own_at(&self, index: u64) -> Option<TableHash> {
        let first = self.own.front()?.index;
        let place = usize::try_from(index.checked_sub(first)?).ok()?;
        self.own.get(place).copied()
    }

    fn differs(&self, theirs: TableHash) -> Compared {
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

    fn note(&mut self, member: u64, index: u64, compared: Compared) {
        let report = self.members.entry(member).or_default();
        match compared {
            Compared::Same => {
                report.agreed = report.agreed.max(Some(index));
                // It has our table again, from a snapshot. A late report from before it differed changes nothing.
                if report.differs.is_some_and(|found| found.index <= index) {
                    report.differs = None;
                    tracing::info!(member, index, "the member has the same lock table again");
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

    /// Compares what came before this entry was applied.
    fn compare_early(&mut self, index: u64) {
        if let Some(majority) = self.announced
            && majority.index <= index
        {
            self.announced = None;
            if let Compared::Differs(found) = self.differs(majority) {
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
            let compared = self.differs(theirs);
            self.note(member, theirs.index, compared);
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
                "this node has another lock table than the majority and stops serving: {found}. Stop it, keep its data \
                 folder for an analysis, and start it with an empty one: remove it from the cell and add it again"
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

    /// A leader that has applied ten entries; the hash of each is its index.
    fn leader() -> Agreement {
        let agreement = Agreement::new(1);
        agreement.set_voters(&[BTreeSet::from([1, 2, 3])]);
        (1..=10).for_each(|index| agreement.applied(at(index, index)));
        agreement
    }

    #[test]
    fn a_leader_serves_while_nobody_is_known_to_differ() {
        let agreement = leader();
        assert_eq!(agreement.verdict(), Verdict::Serve);
        assert_eq!(agreement.of_majority(), None, "nobody has reported");
        agreement.report(2, at(7, 7));
        assert_eq!(agreement.of_majority(), Some(at(7, 7)));
        agreement.report(3, at(9, 9));
        assert_eq!(agreement.of_majority(), Some(at(9, 9)));
    }

    #[test]
    fn a_member_that_differs_stops_the_leader_until_a_majority_is_known_to_agree() {
        let agreement = leader();
        agreement.report(2, at(7, 7));
        agreement.report(3, at(9, 99));
        let found = Disagreement { index: 9, own: 9, other: 99 };
        assert_eq!(agreement.verdict(), Verdict::Undecided(found), "7 is before the difference");
        agreement.report(2, at(9, 9));
        assert_eq!(agreement.verdict(), Verdict::Serve);
        assert_eq!(agreement.differs(3), Some(found));
        assert_eq!(agreement.of_majority(), Some(at(9, 9)));
        agreement.report(3, at(10, 10));
        assert_eq!(agreement.differs(3), None, "it got a snapshot");
    }

    #[test]
    fn a_leader_whose_table_differs_from_most_is_in_the_minority() {
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
    fn a_follower_stops_when_the_majority_has_another_table_until_it_gets_that() {
        let follower = leader();
        follower.announce(at(10, 10));
        follower.announce(at(11, 99));
        assert_eq!(follower.stopped(), None, "not applied yet");
        follower.applied(at(11, 11));
        assert_eq!(follower.stopped(), Some(Disagreement { index: 11, own: 11, other: 99 }));
        follower.replaced(at(20, 200));
        assert_eq!(follower.stopped(), None);
        follower.announce(at(5, 999));
        assert_eq!(follower.stopped(), None, "its own hash of that entry is not known any more");
    }

    #[test]
    fn a_cell_of_one_has_nobody_to_differ_from() {
        let agreement = leader();
        agreement.set_voters(&[BTreeSet::from([1])]);
        assert_eq!(agreement.verdict(), Verdict::Serve);
        assert_eq!(agreement.of_majority(), Some(at(10, 10)));
    }
}
