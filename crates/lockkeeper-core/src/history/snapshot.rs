//! The history as records of a snapshot.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::rings::Ring;
use super::{History, Leader, LockEvent, OperatorAction};
use crate::id::{CellTime, LockName, SessionId};

/// A record of the history in a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum HistoryRecord {
    /// The counters.
    Counters { rings_next: u64, acts_next: u64, budget: u64, filled: CellTime },
    /// A recent event, oldest first.
    Recent(LockName, LockEvent),
    /// The earlier events of a lock.
    Ring(LockName, Ring),
    /// An action of an operator.
    Action(OperatorAction),
    /// A leader change.
    Leader(Leader),
    /// The owner of an ended session whose grants are not all freed yet.
    Leaving(SessionId, SmolStr),
}

impl History {
    /// The number of records.
    pub(crate) fn records_len(&self) -> usize {
        1 + self.recent.len()
            + self.rings.locks()
            + self.acts.len()
            + self.leaders.len()
            + self.owners_of_ended_sessions.len()
    }

    /// All records.
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
        let acts = self.acts.iter().cloned().map(HistoryRecord::Action);
        let leaders = self.leaders.iter().copied().map(HistoryRecord::Leader);
        let leaving = self
            .owners_of_ended_sessions
            .iter()
            .map(|(session, owner)| HistoryRecord::Leaving(*session, owner.clone()));
        std::iter::once(counters).chain(recent).chain(rings).chain(acts).chain(leaders).chain(leaving)
    }

    /// Restores one record; true if it is a duplicate.
    pub(crate) fn take(&mut self, record: HistoryRecord) -> bool {
        match record {
            HistoryRecord::Counters { rings_next, acts_next, budget, filled } => {
                self.rings.next = rings_next;
                (self.acts_next, self.budget, self.filled) = (acts_next, budget, filled);
            }
            HistoryRecord::Recent(lock, event) => {
                // There are never more than fit, so no page is evicted.
                drop(self.recent.push(&lock, event));
            }
            HistoryRecord::Ring(lock, ring) => return self.rings.restore(lock, ring),
            HistoryRecord::Action(act) => self.add_action(act),
            HistoryRecord::Leader(leader) => self.leaders.push_back(leader),
            HistoryRecord::Leaving(session, owner) => {
                return self.owners_of_ended_sessions.insert(session, owner).is_some();
            }
        }
        false
    }
}
