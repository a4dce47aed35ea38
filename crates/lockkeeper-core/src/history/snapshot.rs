//! The history as records of a snapshot, and back.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::{Act, History, Leader, LockEvent, Ring, hash};
use crate::id::{LockName, SessionId};

/// One record.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum HistoryRecord {
    /// How much was ever counted.
    Counters { next: u64, acts_next: u64 },
    /// The last events of a lock.
    Lock { name: LockName, last: u64, listed: u64, events: VecDeque<LockEvent> },
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
        1 + self.rings.len() + self.acts.len() + self.leaders.len() + self.leaving.len()
    }

    /// All of it.
    pub(crate) fn records(&self) -> impl Iterator<Item = HistoryRecord> + '_ {
        let counters = HistoryRecord::Counters { next: self.next, acts_next: self.acts_next };
        let rings = self.rings.iter().map(|((_, name), ring)| HistoryRecord::Lock {
            name: name.clone(),
            last: ring.last,
            listed: ring.listed,
            events: ring.events.clone(),
        });
        let acts = self.acts.iter().cloned().map(HistoryRecord::Act);
        let leaders = self.leaders.iter().copied().map(HistoryRecord::Leader);
        let leaving =
            self.leaving.iter().map(|(session, owner)| HistoryRecord::Leaving(*session, owner.clone()));
        std::iter::once(counters).chain(rings).chain(acts).chain(leaders).chain(leaving)
    }

    /// Takes one record back in.
    pub(crate) fn take(&mut self, record: HistoryRecord) {
        match record {
            HistoryRecord::Counters { next, acts_next } => (self.next, self.acts_next) = (next, acts_next),
            HistoryRecord::Lock { name, last, listed, events } => {
                let key = (hash(&name), name);
                self.count += events.len();
                self.order.insert(listed, key.clone());
                self.rings.insert(key, Arc::new(Ring { events, last, listed }));
            }
            HistoryRecord::Act(act) => self.acts.push_back(act),
            HistoryRecord::Leader(leader) => self.leaders.push_back(leader),
            HistoryRecord::Leaving(session, owner) => {
                self.leaving.insert(session, owner);
            }
        }
    }
}
