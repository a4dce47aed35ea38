//! All connections of a node to other members, one for each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;

use super::link::Link;
use super::{Shared, codec};
use crate::raft::types::{Member, Vote};
use crate::versions::Versions;

/// The connections of a node.
#[derive(Debug)]
pub(crate) struct Links {
    pub(super) shared: Arc<Shared>,
    // Invariant: one for each member that this node has spoken to and that has not been removed since.
    open: Mutex<BTreeMap<u64, Arc<Link>>>,
    last_stream: AtomicU64,
}

impl Links {
    pub(crate) fn new(shared: Shared) -> Links {
        Links { shared: Arc::new(shared), open: Mutex::default(), last_stream: AtomicU64::new(0) }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Link>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection to this member. One to its earlier address or folder is closed.
    pub(super) fn to(&self, target: u64, member: &Member) -> Arc<Link> {
        let mut open = self.open();
        if let Some(link) = open.get(&target).filter(|link| link.member() == member) {
            return link.clone();
        }
        let link = Arc::new(Link::open(self.shared.clone(), target, member.clone()));
        open.insert(target, link.clone());
        link
    }

    /// Names a stream of appends: each has a higher number than those before.
    pub(super) fn next_stream(&self) -> u64 {
        self.last_stream.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Opens a connection to each of these members, so that an election does not wait for it, and closes all others.
    pub(crate) fn keep(&self, own: u64, members: &[(u64, Member)]) {
        for (id, member) in members.iter().filter(|(id, _)| *id != own) {
            self.to(*id, member);
        }
        let known: BTreeSet<u64> = members.iter().map(|(id, _)| *id).collect();
        self.open().retain(|id, _| known.contains(id));
    }

    /// Which versions this node supports.
    pub(crate) fn versions(&self) -> Versions {
        self.shared.versions
    }

    /// The measured round trips.
    pub(crate) fn round_trips(&self) -> BTreeMap<u64, Duration> {
        self.open().iter().filter_map(|(id, link)| Some((*id, link.round_trip()?))).collect()
    }

    /// Tells all members that this leader stops. It must have left office.
    pub(crate) async fn goodbye(&self, vote: &Vote) {
        let Ok(vote) = codec::encode(vote) else { return };
        let links: Vec<Arc<Link>> = self.open().values().cloned().collect();
        join_all(links.iter().map(|link| link.goodbye(vote.clone()))).await;
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.open().clear();
    }
}
