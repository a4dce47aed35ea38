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
use crate::scope::{OptionalAttributes, Scope, ScopeNo};
use crate::session::{Remembered, Session};
use crate::value::StoredValue;

/// Overhead of a record beside its texts and values.
pub(crate) const RECORD: u64 = 128;

/// A value with a size in logical bytes.
pub(crate) trait LogicalBytes {
    /// The size. It must not change while the value is in a map.
    fn logical_bytes(&self) -> u64;

    /// The number of locks that it names, where that matters. It must not change while the value is in a map.
    fn locks(&self) -> u64 {
        0
    }
}

/// An ordered map that tracks the logical bytes of its content. Derefs to [`OrdMap`] for reads.
#[derive(Clone)]
pub(crate) struct SizedMap<K, V> {
    map: OrdMap<K, V>,
    // Invariant: the sum over all records.
    bytes: u64,
    // Invariant: the sum over all values.
    locks: u64,
}

impl<K, V> Default for SizedMap<K, V> {
    fn default() -> SizedMap<K, V> {
        SizedMap { map: OrdMap::new(), bytes: 0, locks: 0 }
    }
}

impl<K: Ord + Debug, V: Debug> Debug for SizedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.map.fmt(f)
    }
}

impl<K: Ord, V: PartialEq> PartialEq for SizedMap<K, V> {
    fn eq(&self, other: &SizedMap<K, V>) -> bool {
        self.bytes == other.bytes && self.map == other.map
    }
}

impl<K, V> Deref for SizedMap<K, V> {
    type Target = OrdMap<K, V>;

    fn deref(&self) -> &OrdMap<K, V> {
        &self.map
    }
}

impl<K: Ord + Clone + LogicalBytes, V: Clone + LogicalBytes> SizedMap<K, V> {
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (of_key, of_value, locks) = (key.logical_bytes(), value.logical_bytes(), value.locks());
        let old = self.map.insert(key, value);
        match &old {
            Some(old) => {
                self.bytes -= old.logical_bytes();
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
        self.bytes -= RECORD + key.logical_bytes() + value.logical_bytes();
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

    /// The number of locks that all values name: see [`LogicalBytes::locks`].
    pub(crate) fn locks(&self) -> u64 {
        self.locks
    }

    /// The same as [`SizedMap::bytes`], recounted.
    pub(crate) fn count_bytes(&self) -> u64 {
        self.map.iter().map(|(key, value)| RECORD + key.logical_bytes() + value.logical_bytes()).sum()
    }
}

impl<'a, K: Ord, V> IntoIterator for &'a SizedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = <&'a OrdMap<K, V> as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        (&self.map).into_iter()
    }
}

/// Implements [`LogicalBytes`] for numbers, which the overhead of a record covers.
macro_rules! covered_by_record {
    ($($kind:ty)*) => {$(
        impl LogicalBytes for $kind {
            fn logical_bytes(&self) -> u64 {
                0
            }
        }
    )*};
}
covered_by_record!(u32 u64 u128 SessionId Token Ticket ScopeNo Lock Rights Quota);

impl LogicalBytes for SmolStr {
    fn logical_bytes(&self) -> u64 {
        self.len() as u64
    }
}

impl<A: LogicalBytes, B: LogicalBytes> LogicalBytes for (A, B) {
    fn logical_bytes(&self) -> u64 {
        self.0.logical_bytes() + self.1.logical_bytes()
    }
}

impl<T: LogicalBytes> LogicalBytes for Option<T> {
    fn logical_bytes(&self) -> u64 {
        self.as_ref().map_or(0, LogicalBytes::logical_bytes)
    }
}

impl LogicalBytes for Arc<OptionalAttributes> {
    fn logical_bytes(&self) -> u64 {
        self.value.logical_bytes()
    }
}

impl LogicalBytes for Locks {
    fn logical_bytes(&self) -> u64 {
        // Each further lock has a record of its own in the indexes.
        let names = self.as_slice();
        names.iter().map(LogicalBytes::logical_bytes).sum::<u64>()
            + (names.len() as u64).saturating_sub(1) * RECORD
    }
}

impl LogicalBytes for Session {
    fn logical_bytes(&self) -> u64 {
        self.owner.logical_bytes() + self.identity.logical_bytes()
    }
}

impl LogicalBytes for Held {
    fn logical_bytes(&self) -> u64 {
        self.locks.logical_bytes() + self.request.logical_bytes() + self.extra.logical_bytes()
    }

    fn locks(&self) -> u64 {
        self.locks.as_slice().len() as u64
    }
}

impl LogicalBytes for Waiter {
    fn logical_bytes(&self) -> u64 {
        // Its keys in the queue, among the waits of its session, the timers and the candidates.
        RECORD + self.locks.logical_bytes() + self.request.logical_bytes() + self.extra.logical_bytes()
    }

    fn locks(&self) -> u64 {
        self.locks.as_slice().len() as u64
    }
}

impl LogicalBytes for Grant {
    fn logical_bytes(&self) -> u64 {
        self.locks.logical_bytes()
    }
}

impl LogicalBytes for Refusal {
    fn logical_bytes(&self) -> u64 {
        match self {
            Refusal::Busy { lock } | Refusal::Timeout { lock } | Refusal::NotHeld { lock, .. } => {
                lock.logical_bytes()
            }
            Refusal::Died { lock, older } => lock.logical_bytes() + older.logical_bytes(),
            Refusal::Deadlock { cycle } => cycle.iter().map(LogicalBytes::logical_bytes).sum(),
            Refusal::Invalid(text) | Refusal::Limit(text) | Refusal::TooLarge(text) => text.logical_bytes(),
            Refusal::Cancelled
            | Refusal::SessionLost
            | Refusal::StaleToken { .. }
            | Refusal::VersionMismatch { .. }
            | Refusal::Wounded => 0,
        }
    }
}

impl LogicalBytes for CycleStep {
    fn logical_bytes(&self) -> u64 {
        RECORD + self.scope.logical_bytes() + self.owner.logical_bytes() + self.lock.logical_bytes()
    }
}

impl LogicalBytes for LockEvent {
    fn logical_bytes(&self) -> u64 {
        RECORD + self.owner.logical_bytes() + self.reason.logical_bytes()
    }
}

impl LogicalBytes for OperatorAction {
    fn logical_bytes(&self) -> u64 {
        let texts = match &self.kind {
            ActionKind::ForceRelease { by, lock, reason, .. } => {
                by.logical_bytes() + lock.logical_bytes() + reason.logical_bytes()
            }
            ActionKind::Members { members } => members.logical_bytes(),
            ActionKind::Access { by, change } => by.logical_bytes() + change.logical_bytes(),
            ActionKind::Note { by, text } => by.logical_bytes() + text.logical_bytes(),
            ActionKind::Restored { .. } => 0,
        };
        RECORD + texts
    }
}

impl LogicalBytes for Remembered {
    fn logical_bytes(&self) -> u64 {
        match self {
            Remembered::Waiting(_) => 0,
            Remembered::Granted(grant) => grant.logical_bytes(),
            Remembered::Refused(refusal) => refusal.logical_bytes(),
        }
    }
}

impl LogicalBytes for StoredValue {
    fn logical_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

impl LogicalBytes for Scope {
    fn logical_bytes(&self) -> u64 {
        // Its keys in the indexes of names, grants, waits and locks.
        RECORD + self.name.logical_bytes()
    }
}

impl LogicalBytes for AccessToken {
    fn logical_bytes(&self) -> u64 {
        self.identity.logical_bytes()
    }
}
