//! Free log space of the members, which they report with their answers.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Consensus;
use super::log::SpaceWatch;

/// Returns the bytes that a node can still write for entries, while its next log segment or a spare can't be created. `None`
/// otherwise.
pub(crate) fn space_if_short(log: &SpaceWatch) -> Option<u64> {
    let space = log.space()?;
    space.trouble.is_some().then(|| space.entry_bytes())
}

/// Latest reports of members that are short of disk space.
#[derive(Debug, Default)]
pub(crate) struct SpaceReports {
    short: Mutex<BTreeMap<u64, u64>>,
}

impl SpaceReports {
    fn short(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.short.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the report of a member.
    pub(crate) fn report(&self, member: u64, space_if_short: Option<u64>) {
        let mut short = self.short();
        match space_if_short {
            Some(bytes) => drop(short.insert(member, bytes)),
            None if short.is_empty() => {}
            None => drop(short.remove(&member)),
        }
    }
}

impl Consensus {
    /// Reports whether any member is short of space.
    pub(crate) fn has_reports_of_shortage(&self) -> bool {
        !self.space_reports.short().is_empty()
    }

    /// Returns the voters without space for `bytes`, unless a majority is reachable and has space. Only for a leader that has space
    /// itself: the reports that a follower has are outdated.
    pub(crate) fn majority_lacks_space(&self, bytes: u64) -> Option<Vec<u64>> {
        let lacking: Vec<u64> = {
            let short = self.space_reports.short();
            short.iter().filter(|(_, left)| **left < bytes).map(|(id, _)| *id).collect()
        };
        if lacking.is_empty() {
            return None;
        }
        let status = self.status();
        if !status.leads {
            return None;
        }
        let voters: Vec<_> = status.members.iter().filter(|member| member.voter).collect();
        let have_room = voters.iter().filter(|member| {
            let is_reachable = member.node_id == self.node_id || self.is_reachable(member);
            is_reachable && !lacking.contains(&member.node_id)
        });
        let is_lacking = |id: &u64| voters.iter().any(|member| member.node_id == *id);
        let lacking: Vec<u64> = lacking.iter().copied().filter(is_lacking).collect();
        (have_room.count() <= voters.len() / 2 && !lacking.is_empty()).then_some(lacking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_without_shortage_clears_the_shortage() {
        let space_reports = SpaceReports::default();
        space_reports.report(2, Some(7));
        space_reports.report(3, None);
        assert_eq!(*space_reports.short(), BTreeMap::from([(2, 7)]));
        space_reports.report(2, None);
        assert!(space_reports.short().is_empty());
    }
}
