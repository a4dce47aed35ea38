//! The history as records of a snapshot, and back.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::rings::Ring;
use super::{Act, History, Leader, LockEvent};
use crate::id::{CellTime, LockName, SessionId};

/// One record.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum HistoryRecord {
    /// What is counted.
    Counters { rings_next: u64, acts_next: u64, budget: u64, filled: CellTime },
    /// An event that is recent, the oldest first.
    Recent(LockName, LockEvent),
    /// The earlier events of a lock.
    Ring(LockName, Ring),
    /// Something that an operator did.
    Act(Act),
    /// A change of the leader.
    Leader(Leader),
    /// The owner of a session that is being cleared away.
    Leaving(SessionId, SmolStr),
}

impl History {
    /// How many records there are.
    pub(crate) fn records_len(&self) -> usize {
        1 + self.recent.len() + self.rings.locks() + self.acts.len() + self.leaders.len() + self.leaving.len()
    }

    /// All of it.
    pub(crate) fn records(&self) -> impl Iterator<Item = HistoryRecord> + '_ {
        let counters = HistoryRecord::Counters {
            rings_next: self.rings.next,
            acts_next: self.acts_next,
            budget: self.budget,
            filled: self.filled,
        };
        let recent =
            self.recent.iter().map(|(lock, event)| HistoryRecord::Recent(lock.clone(), event.clone()));
        let rings = self.rings.iter().map(|(lock, ring)| HistoryRecord::Ring(lock.clone(), ring.clone()));
        let acts = self.acts.iter().cloned().map(HistoryRecord::Act);
        let leaders = self.leaders.iter().copied().map(HistoryRecord::Leader);
        let leaving =
            self.leaving.iter().map(|(session, owner)| HistoryRecord::Leaving(*session, owner.clone()));
        std::iter::once(counters).chain(recent).chain(rings).chain(acts).chain(leaders).chain(leaving)
    }

    /// Takes one record back in; true if it came twice.
    pub(crate) fn take(&mut self, record: HistoryRecord) -> bool {
        match record {
            HistoryRecord::Counters { rings_next, acts_next, budget, filled } => {
                self.rings.next = rings_next;
                (self.acts_next, self.budget, self.filled) = (acts_next, budget, filled);
            }
            HistoryRecord::Recent(lock, event) => {
                // There are never more of them than are recent, so that no page comes back.
                drop(self.recent.push(&lock, event));
            }
            HistoryRecord::Ring(lock, ring) => return self.rings.restore(lock, ring),
            HistoryRecord::Act(act) => self.add_act(act),
            HistoryRecord::Leader(leader) => self.leaders.push_back(leader),
            HistoryRecord::Leaving(session, owner) => {
                return self.leaving.insert(session, owner).is_some();
            }
        }
        false
    }
}
