//! Logical size of the table in bytes (S11), tracked with every change and equal on every node.
//!
//! Logical bytes are the lengths of all texts and values, and a fixed overhead per record for its numbers, index keys and
//! tree nodes. They do not measure the memory of a process, which differs between nodes.

use std::fmt::{self, Debug};
use std::ops::Deref;
use std::sync::Arc;

use imbl::OrdMap;
use smol_str::SmolStr;

use crate::access::{AccessToken, Rights};
use crate::command::Locks;
use crate::deadlock::CycleStep;
use crate::effect::Grant;
use crate::history::{ActionKind, LockEvent, OperatorAction};
use crate::id::{SessionId, Ticket, Token};
use crate::lock::{Held, Lock};
use crate::queue::Waiter;
use crate::quota::Quota;
use crate::refusal::Refusal;
use crate::scope::{Extra, Scope, ScopeNo};
use crate::session::{Remembered, Session};
use crate::value::StoredValue;

/// Overhead of a record beside its texts and values.
pub(crate) const RECORD: u64 = 128;

/// A value with a size in logical bytes.
pub(crate) trait Weigh {
    /// The size. It must not change while the value is in a map.
    fn weigh(&self) -> u64;

    /// The number of locks that it names, where that matters. It must not change while the value is in a map.
    fn locks(&self) -> u64 {
        0
    }
}

/// An ordered map that tracks the logical bytes of its content. Derefs to [`OrdMap`] for reads.
#[derive(Clone)]
pub(crate) struct WeighedMap<K, V> {
    map: OrdMap<K, V>,
    // Invariant: the sum over all records.
    bytes: u64,
    // Invariant: the sum over all values.
    locks: u64,
}

impl<K, V> Default for WeighedMap<K, V> {
    fn default() -> WeighedMap<K, V> {
        WeighedMap { map: OrdMap::new(), bytes: 0, locks: 0 }
    }
}

impl<K: Ord + Debug, V: Debug> Debug for WeighedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.map.fmt(f)
    }
}

impl<K: Ord, V: PartialEq> PartialEq for WeighedMap<K, V> {
    fn eq(&self, other: &WeighedMap<K, V>) -> bool {
        self.bytes == other.bytes && self.map == other.map
    }
}

impl<K, V> Deref for WeighedMap<K, V> {
    type Target = OrdMap<K, V>;

    fn deref(&self) -> &OrdMap<K, V> {
        &self.map
    }
}

impl<K: Ord + Clone + Weigh, V: Clone + Weigh> WeighedMap<K, V> {
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (of_key, of_value, locks) = (key.weigh(), value.weigh(), value.locks());
        let old = self.map.insert(key, value);
        match &old {
            Some(old) => {
                self.bytes -= old.weigh();
                self.locks -= old.locks();
            }
            None => self.bytes += RECORD + of_key,
        }
        self.bytes += of_value;
        self.locks += locks;
        old
    }

    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        Q: Ord + ?Sized,
        K: std::borrow::Borrow<Q>,
    {
        let (key, value) = self.map.remove_with_key(key)?;
        self.bytes -= RECORD + key.weigh() + value.weigh();
        self.locks -= value.locks();
        Some(value)
    }

    /// Mutable access, for changes that do not change the size.
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

    /// The number of locks that all values name: see [`Weigh::locks`].
    pub(crate) fn locks(&self) -> u64 {
        self.locks
    }

    /// The same as [`WeighedMap::bytes`], recounted.
    pub(crate) fn count_bytes(&self) -> u64 {
        self.map.iter().map(|(key, value)| RECORD + key.weigh() + value.weigh()).sum()
    }
}

impl<'a, K: Ord, V> IntoIterator for &'a WeighedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = <&'a OrdMap<K, V> as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        (&self.map).into_iter()
    }
}

/// Implements [`Weigh`] for numbers, which the overhead of a record covers.
macro_rules! covered_by_record {
    ($($kind:ty)*) => {$(
        impl Weigh for $kind {
            fn weigh(&self) -> u64 {
                0
            }
        }
    )*};
}
covered_by_record!(u32 u64 u128 SessionId Token Ticket ScopeNo Lock Rights Quota);

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
        // Each further lock has a record of its own in the indexes.
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

    fn locks(&self) -> u64 {
        self.locks.as_slice().len() as u64
    }
}

impl Weigh for Waiter {
    fn weigh(&self) -> u64 {
        // Its keys in the queue, among the waits of its session, the timers and the candidates.
        RECORD + self.locks.weigh() + self.request.weigh() + self.extra.weigh()
    }

    fn locks(&self) -> u64 {
        self.locks.as_slice().len() as u64
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

impl Weigh for OperatorAction {
    fn weigh(&self) -> u64 {
        let texts = match &self.kind {
            ActionKind::ForceRelease { by, lock, reason, .. } => by.weigh() + lock.weigh() + reason.weigh(),
            ActionKind::Members { members } => members.weigh(),
            ActionKind::Access { by, change } => by.weigh() + change.weigh(),
            ActionKind::Note { by, text } => by.weigh() + text.weigh(),
            ActionKind::Restored { .. } => 0,
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
        // Its keys in the indexes of names, grants, waits and locks.
        RECORD + self.name.weigh()
    }
}

impl Weigh for AccessToken {
    fn weigh(&self) -> u64 {
        self.identity.weigh()
    }
}
