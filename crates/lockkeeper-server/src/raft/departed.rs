//! Nodes that have left the cell. A removed node still knows the cell secret, so each member records which nodes it has itself
//! seen leave the membership, and refuses their messages.
//!
//! A node that was removed can be added again under the same ID. A member that has applied its removal, but not its return,
//! would refuse it even as the leader, and could then never learn of its return. So a member that has heard no leader for
//! a long time accepts departed nodes until it hears another leader. Raft itself still refuses candidates whose log is behind.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::types::StoredMembership;
use crate::data_dir::DataDir;

/// The IDs of departed nodes.
#[derive(Debug)]
pub(crate) struct Departed {
    nodes: Mutex<Nodes>,
    /// Whether departed nodes are accepted.
    is_suspended: AtomicBool,
    /// Stores the IDs.
    home: Arc<DataDir>,
}

#[derive(Debug)]
struct Nodes {
    ids: BTreeSet<u64>,
    /// Log index of the last recorded change. After a restart, raft applies changes again that are already recorded.
    through: Option<u64>,
}

impl Departed {
    pub(crate) fn new(home: Arc<DataDir>) -> Departed {
        let identity = home.identity();
        let nodes = Nodes { ids: identity.departed, through: identity.departed_through };
        Departed { nodes: Mutex::new(nodes), is_suspended: AtomicBool::new(false), home }
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contains(&self, id: u64) -> bool {
        self.nodes().ids.contains(&id)
    }

    /// Records an applied change of the membership.
    pub(crate) fn record(&self, before: &StoredMembership, after: &StoredMembership) {
        let index = after.log_id().as_ref().map(|id| id.index);
        let members = |membership: &StoredMembership| membership.nodes().map(|(id, _)| *id).collect();
        let (before, after): (BTreeSet<u64>, BTreeSet<u64>) = (members(before), members(after));
        let (ids, through) = {
            let mut nodes = self.nodes();
            if index.is_some() && index <= nodes.through {
                return;
            }
            let ids: BTreeSet<u64> =
                nodes.ids.union(&before).filter(|id| !after.contains(*id)).copied().collect();
            if ids == nodes.ids {
                return;
            }
            *nodes = Nodes { ids, through: index };
            (nodes.ids.clone(), index)
        };
        if let Err(error) = self.home.remember_departed(ids, through) {
            // In memory they are known. After a restart, the log names those that it still contains.
            tracing::warn!(%error, "failed to record the nodes that have left the cell");
        }
    }

    /// Reports whether messages of this node are refused. `is_leaderless` reports whether this member has heard no leader for a
    /// long time.
    pub(crate) fn refuses(&self, id: u64, is_leaderless: impl FnOnce() -> bool) -> bool {
        if !self.contains(id) || self.is_suspended.load(Ordering::Relaxed) {
            return false;
        }
        let is_leaderless = is_leaderless();
        if is_leaderless {
            tracing::warn!(
                node_id = id,
                "accepting messages of nodes that have left the cell until another leader is heard: this node may have been added again"
            );
            self.is_suspended.store(true, Ordering::Relaxed);
        }
        !is_leaderless
    }

    /// Records a message of a leader.
    pub(crate) fn note_leader(&self, leader: u64) {
        if self.is_suspended.load(Ordering::Relaxed) && !self.contains(leader) {
            self.is_suspended.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::raft::types::{Member, Membership, TypeConfig};

    fn membership(index: u64, ids: &[u64]) -> StoredMembership {
        let nodes: BTreeMap<u64, Member> = ids.iter().map(|id| (*id, Member::default())).collect();
        let voters = ids.iter().copied().collect();
        let at = openraft::testing::log_id::<TypeConfig>(1, 1, index);
        StoredMembership::new(Some(at), Membership::new(vec![voters], nodes).unwrap())
    }

    fn departed() -> Departed {
        Departed::new(Arc::new(DataDir::in_memory(1).unwrap()))
    }

    #[test]
    fn removed_nodes_are_refused_until_they_are_added_again() {
        let departed = departed();
        let refuses = |id| departed.refuses(id, || false);
        let (three, two) = (membership(1, &[1, 2, 3]), membership(2, &[1, 2]));
        departed.record(&StoredMembership::default(), &three);
        assert!(!refuses(3) && !refuses(9), "a member, and a node that this one does not know yet");
        departed.record(&three, &two);
        assert!(refuses(3) && !refuses(2) && !refuses(9));
        // After a restart, also while the log is applied again.
        let restarted = Departed::new(departed.home.clone());
        assert!(restarted.refuses(3, || false));
        restarted.record(&StoredMembership::default(), &three);
        assert!(restarted.refuses(3, || false));
        restarted.record(&two, &membership(3, &[1, 2, 3]));
        assert!(!restarted.refuses(3, || false));
    }

    #[test]
    fn member_without_a_leader_accepts_a_departed_node_that_leads() {
        let departed = departed();
        departed.record(&membership(1, &[1, 2, 3, 4]), &membership(2, &[1, 2]));
        assert!(departed.refuses(3, || false));
        assert!(!departed.refuses(3, || true));
        // It leads: its own messages do not make it refused again.
        departed.note_leader(3);
        assert!(!departed.refuses(3, || false));
        departed.note_leader(2);
        assert!(departed.refuses(3, || false));
    }
}
