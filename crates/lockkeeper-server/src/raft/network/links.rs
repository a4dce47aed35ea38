//! The connections of a node to the other members, one per member.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;

use super::link::Link;
use super::{Shared, codec};
use crate::formation::versions::Versions;
use crate::raft::types::{Member, Vote};

/// The connections of a node.
#[derive(Debug)]
pub(crate) struct Links {
    pub(super) shared: Arc<Shared>,
    // Invariant: one per member that this node has contacted and that has not been removed since.
    links: Mutex<BTreeMap<u64, Arc<Link>>>,
    last_stream: AtomicU64,
}

impl Links {
    pub(crate) fn new(shared: Shared) -> Links {
        Links { shared: Arc::new(shared), links: Mutex::default(), last_stream: AtomicU64::new(0) }
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection to this member. Replaces one to an earlier address or folder.
    pub(super) fn get_or_open(&self, target: u64, member: &Member) -> Arc<Link> {
        let mut links = self.links();
        if let Some(link) = links.get(&target).filter(|link| link.member() == member) {
            return link.clone();
        }
        let link = Arc::new(Link::open(self.shared.clone(), target, member.clone()));
        links.insert(target, link.clone());
        link
    }

    /// Returns the number of a new append stream, higher than all earlier ones.
    pub(super) fn next_stream(&self) -> u64 {
        self.last_stream.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Opens connections to these members, so that an election does not wait for them, and closes all others.
    pub(crate) fn set_members(&self, own: u64, members: &[(u64, Member)]) {
        for (id, member) in members.iter().filter(|(id, _)| *id != own) {
            self.get_or_open(*id, member);
        }
        let known: BTreeSet<u64> = members.iter().map(|(id, _)| *id).collect();
        self.links().retain(|id, _| known.contains(id));
    }

    /// Returns the versions that this node supports.
    pub(crate) fn versions(&self) -> Versions {
        self.shared.versions
    }

    /// Returns the measured round trips.
    pub(crate) fn round_trips(&self) -> BTreeMap<u64, Duration> {
        self.links().iter().filter_map(|(id, link)| Some((*id, link.round_trip()?))).collect()
    }

    /// Tells all members that this leader stops. It must have stepped down.
    pub(crate) async fn goodbye(&self, vote: &Vote) {
        let Ok(vote) = codec::encode(vote) else { return };
        let links: Vec<Arc<Link>> = self.links().values().cloned().collect();
        join_all(links.iter().map(|link| link.goodbye(vote.clone()))).await;
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.links().clear();
    }
}
