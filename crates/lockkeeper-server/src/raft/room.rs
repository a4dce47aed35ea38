//! The room that the logs of the members have, as they report it with their answers.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Consensus;
use super::log::SpaceWatch;

/// A follower with less room than this takes no entries: the rest is for votes, and for what frees space.
const FULL_BYTES: u64 = 1 << 20;

/// What a node reports about its log: `None` as long as the next segment can be made, otherwise the bytes that are left.
pub(crate) fn room_if_short(log: &SpaceWatch) -> Option<u64> {
    let space = log.space()?;
    space.trouble.map(|_| space.current_bytes + space.next_bytes)
}

/// Whether a log takes no more entries of a leader.
pub(crate) fn is_full(log: &SpaceWatch) -> bool {
    room_if_short(log).is_some_and(|bytes| bytes < FULL_BYTES)
}

/// The members that have reported that they are short of room.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    short: Mutex<BTreeMap<u64, u64>>,
}

impl Rooms {
    fn short(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.short.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A member has reported.
    pub(crate) fn report(&self, member: u64, room_if_short: Option<u64>) {
        let mut short = self.short();
        match room_if_short {
            Some(bytes) => drop(short.insert(member, bytes)),
            None if short.is_empty() => {}
            None => drop(short.remove(&member)),
        }
    }
}

impl Consensus {
    /// Whether any member has reported that it is short of room.
    pub(crate) fn has_reports_of_shortage(&self) -> bool {
        !self.rooms.short().is_empty()
    }

    /// The voters that lack room for `bytes`, if those that are there and have room are no majority. This node leads and
    /// has room; otherwise the reports are of another time.
    pub(crate) fn majority_lacks_room(&self, bytes: u64) -> Option<Vec<u64>> {
        let lacking: Vec<u64> = {
            let short = self.rooms.short();
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
            let is_there = member.node_id == self.node_id || self.is_there(member);
            is_there && !lacking.contains(&member.node_id)
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
    fn report_of_room_ends_the_shortage() {
        let rooms = Rooms::default();
        rooms.report(2, Some(7));
        rooms.report(3, None);
        assert_eq!(*rooms.short(), BTreeMap::from([(2, 7)]));
        rooms.report(2, None);
        assert!(rooms.short().is_empty());
    }
}
