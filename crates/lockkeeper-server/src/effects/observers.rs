//! Observers of locks, used for elections. They are notified that a lock was granted or released, and read the new state
//! themselves.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper_core::LockName;
use tokio::sync::watch;

use crate::failure::Failure;

/// Most observers of a node, for all identities together. Connections and identities have lower bounds
/// (`crate::limits::budget`).
const OBSERVERS_MAX: usize = 65_536;

/// The observed locks.
#[derive(Debug, Default)]
pub struct Observers {
    /// The number of observers. While it is zero, grants skip the mutex.
    count: AtomicUsize,
    // Invariant: each has a receiver.
    locks: Mutex<BTreeMap<LockName, watch::Sender<()>>>,
}

impl Observers {
    fn locks(&self) -> MutexGuard<'_, BTreeMap<LockName, watch::Sender<()>>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Observes a lock until the observation is dropped.
    pub fn observe(&self, lock: LockName) -> Result<Observation<'_>, Failure> {
        let mut locks = self.locks();
        // Changed only while the mutex is held.
        let count = self.count.load(Ordering::Acquire);
        if count >= OBSERVERS_MAX {
            return Err(Failure::Overload {
                why: format!("this node has {OBSERVERS_MAX} observers of elections, which is its limit")
                    .into(),
                retry_after_ms: 1_000,
            });
        }
        let receiver = locks.entry(lock.clone()).or_default().subscribe();
        self.count.store(count + 1, Ordering::Release);
        Ok(Observation { observers: self, lock, receiver })
    }

    /// Notifies the observers of these locks.
    pub fn changed(&self, names: &[LockName]) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let locks = self.locks();
        for name in names {
            if let Some(sender) = locks.get(name) {
                sender.send_replace(());
            }
        }
    }
}

/// One observer of one lock.
#[derive(Debug)]
pub struct Observation<'a> {
    observers: &'a Observers,
    lock: LockName,
    receiver: watch::Receiver<()>,
}

impl Observation<'_> {
    /// Marks all changes so far as seen.
    pub fn mark_unchanged(&mut self) {
        self.receiver.mark_unchanged();
    }

    /// Waits for the next grant or release of the lock.
    pub async fn changed(&mut self) {
        // The sender lives as long as its receivers.
        let _ = self.receiver.changed().await;
    }
}

impl Drop for Observation<'_> {
    fn drop(&mut self) {
        let mut locks = self.observers.locks();
        // This is the last one.
        if locks.get(&self.lock).is_some_and(|sender| sender.receiver_count() <= 1) {
            locks.remove(&self.lock);
        }
        self.observers.count.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observers_are_notified_and_dropped_ones_are_removed() {
        let observers = Observers::default();
        observers.changed(&["a".into()]);
        let mut first = observers.observe("a".into()).unwrap();
        let second = observers.observe("a".into()).unwrap();
        let other = observers.observe("b".into()).unwrap();
        assert!(!first.receiver.has_changed().unwrap());
        observers.changed(&["a".into(), "c".into()]);
        assert!(first.receiver.has_changed().unwrap() && !other.receiver.has_changed().unwrap());
        first.mark_unchanged();
        drop((second, other));
        assert_eq!(observers.locks().keys().collect::<Vec<_>>(), ["a"]);
        drop(first);
        assert_eq!(observers.count.load(Ordering::Acquire), 0);
    }

    #[test]
    fn the_number_of_observers_is_bounded_whatever_they_observe() {
        for distinct in [1, OBSERVERS_MAX] {
            let observers = Observers::default();
            let name = |number: usize| LockName::from(format!("election-{}", number % distinct));
            let mut observed: Vec<_> =
                (0..OBSERVERS_MAX).map(|number| observers.observe(name(number)).unwrap()).collect();
            assert!(matches!(observers.observe(name(0)), Err(Failure::Overload { .. })), "{distinct} names");
            observed.pop();
            assert!(observers.observe(name(0)).is_ok());
        }
    }
}
