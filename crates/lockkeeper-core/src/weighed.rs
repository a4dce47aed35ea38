//! What the table holds in logical bytes (S11): a number that is the same on every node, and follows every change.
//!
//! Logical bytes are the lengths of all texts and values, and a fixed amount for each record that stands for its numbers,
//! its keys in indexes and the tree around it. They are no measure of a process's memory, which differs between nodes.

use std::fmt::{self, Debug};
use std::ops::Deref;
use std::sync::Arc;

use imbl::OrdMap;
use smol_str::SmolStr;

use crate::access::{AccessToken, Rights};
use crate::command::Locks;
use crate::deadlock::CycleStep;
use crate::effect::Grant;
use crate::history::{Act, Deed, LockEvent};
use crate::id::{SessionId, Ticket, Token};
use crate::lock::{Held, Lock};
use crate::queue::Waiter;
use crate::quota::Quota;
use crate::refusal::Refusal;
use crate::scope::{Extra, Scope, ScopeNo};
use crate::session::{Remembered, Session};
use crate::value::StoredValue;

/// What every record costs beside its content.
pub(crate) const RECORD: u64 = 128;

/// Something that has a size in logical bytes.
pub(crate) trait Weigh {
    /// The size. It never changes while the thing is in a map, except by taking it out and putting it back.
    fn weigh(&self) -> u64;
}

/// An ordered map that knows the logical bytes of its content. It is read like an [`OrdMap`].
#[derive(Clone)]
pub(crate) struct Weighed<K, V> {
    map: OrdMap<K, V>,
    // Invariant: the sum over all records.
    bytes: u64,
}

impl<K, V> Default for Weighed<K, V> {
    fn default() -> Weighed<K, V> {
        Weighed { map: OrdMap::new(), bytes: 0 }
    }
}

impl<K: Ord + Debug, V: Debug> Debug for Weighed<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.map.fmt(f)
    }
}

impl<K: Ord, V: PartialEq> PartialEq for Weighed<K, V> {
    fn eq(&self, other: &Weighed<K, V>) -> bool {
        self.bytes == other.bytes && self.map == other.map
    }
}

impl<K, V> Deref for Weighed<K, V> {
    type Target = OrdMap<K, V>;

    fn deref(&self) -> &OrdMap<K, V> {
        &self.map
    }
}

impl<K: Ord + Clone + Weigh, V: Clone + Weigh> Weighed<K, V> {
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (of_key, of_value) = (key.weigh(), value.weigh());
        let old = self.map.insert(key, value);
        match &old {
            Some(old) => self.bytes -= old.weigh(),
            None => self.bytes += RECORD + of_key,
        }
        self.bytes += of_value;
        old
    }

    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        Q: Ord + ?Sized,
        K: std::borrow::Borrow<Q>,
    {
        let (key, value) = self.map.remove_with_key(key)?;
        self.bytes -= RECORD + key.weigh() + value.weigh();
        Some(value)
    }

    /// For changes that leave the size as it is.
    pub(crate) fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        Q: Ord + ?Sized,
        K: std::borrow::Borrow<Q>,
    {
        self.map.get_mut(key)
    }

    /// The logical bytes of all records.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The same, counted anew.
    pub(crate) fn count_bytes(&self) -> u64 {
        self.map.iter().map(|(key, value)| RECORD + key.weigh() + value.weigh()).sum()
    }
}

impl<'a, K: Ord, V> IntoIterator for &'a Weighed<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = <&'a OrdMap<K, V> as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        (&self.map).into_iter()
    }
}

/// The numbers in a record are part of what every record costs.
macro_rules! weighs_nothing_more {
    ($($kind:ty)*) => {$(
        impl Weigh for $kind {
            fn weigh(&self) -> u64 {
                0
            }
        }
    )*};
}
weighs_nothing_more!(u32 u64 u128 SessionId Token Ticket ScopeNo Lock Rights Quota);

impl Weigh for SmolStr {
    fn weigh(&self) -> u64 {
        self.len() as u64
    }
}

impl<A: Weigh, B: Weigh> Weigh for (A, B) {
    fn weigh(&self) -> u64 {
        self.0.weigh() + self.1.weigh()
    }
}

impl<T: Weigh> Weigh for Option<T> {
    fn weigh(&self) -> u64 {
        self.as_ref().map_or(0, Weigh::weigh)
    }
}

impl Weigh for Arc<Extra> {
    fn weigh(&self) -> u64 {
        self.value.weigh()
    }
}

impl Weigh for Locks {
    fn weigh(&self) -> u64 {
        // Each lock of several has a record of its own in the indexes.
        let names = self.as_slice();
        names.iter().map(Weigh::weigh).sum::<u64>() + (names.len() as u64).saturating_sub(1) * RECORD
    }
}

impl Weigh for Session {
    fn weigh(&self) -> u64 {
        self.owner.weigh() + self.identity.weigh()
    }
}

impl Weigh for Held {
    fn weigh(&self) -> u64 {
        self.locks.weigh() + self.request.weigh() + self.extra.weigh()
    }
}

impl Weigh for Waiter {
    fn weigh(&self) -> u64 {
        self.locks.weigh() + self.request.weigh() + self.extra.weigh()
    }
}

impl Weigh for Grant {
    fn weigh(&self) -> u64 {
        self.locks.weigh()
    }
}

impl Weigh for Refusal {
    fn weigh(&self) -> u64 {
        match self {
            Refusal::Busy { lock } | Refusal::Timeout { lock } | Refusal::NotHeld { lock, .. } => {
                lock.weigh()
            }
            Refusal::Died { lock, older } => lock.weigh() + older.weigh(),
            Refusal::Deadlock { cycle } => cycle.iter().map(Weigh::weigh).sum(),
            Refusal::Invalid(text) | Refusal::Limit(text) | Refusal::TooLarge(text) => text.weigh(),
            Refusal::Cancelled
            | Refusal::SessionLost
            | Refusal::StaleToken { .. }
            | Refusal::VersionMismatch { .. }
            | Refusal::Wounded => 0,
        }
    }
}

impl Weigh for CycleStep {
    fn weigh(&self) -> u64 {
        RECORD + self.scope.weigh() + self.owner.weigh() + self.lock.weigh()
    }
}

impl Weigh for LockEvent {
    fn weigh(&self) -> u64 {
        RECORD + self.owner.weigh() + self.reason.weigh()
    }
}

impl Weigh for Act {
    fn weigh(&self) -> u64 {
        let texts = match &self.deed {
            Deed::ForceRelease { by, lock, reason, .. } => by.weigh() + lock.weigh() + reason.weigh(),
            Deed::Members { members } => members.weigh(),
            Deed::Access { by, change } => by.weigh() + change.weigh(),
            Deed::Note { by, text } => by.weigh() + text.weigh(),
            Deed::Restored { .. } => 0,
        };
        RECORD + texts
    }
}

impl Weigh for Remembered {
    fn weigh(&self) -> u64 {
        match self {
            Remembered::Waiting(_) => 0,
            Remembered::Granted(grant) => grant.weigh(),
            Remembered::Refused(refusal) => refusal.weigh(),
        }
    }
}

impl Weigh for StoredValue {
    fn weigh(&self) -> u64 {
        self.bytes.len() as u64
    }
}

impl Weigh for Scope {
    fn weigh(&self) -> u64 {
        self.name.weigh()
    }
}

impl Weigh for AccessToken {
    fn weigh(&self) -> u64 {
        self.identity.weigh()
    }
}
