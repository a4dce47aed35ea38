//! Those who want to know when a lock changes hands: observers of elections. They are told that something changed, and look
//! for themselves what it is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use lockkeeper_core::LockName;
use tokio::sync::watch;

/// The locks that are observed.
#[derive(Debug, Default)]
pub struct Observers {
    /// How many locks: while there are none, grants pay nothing for this.
    count: AtomicUsize,
    locks: Mutex<BTreeMap<LockName, watch::Sender<()>>>,
}

impl Observers {
    /// What is received changes after every grant and every release of the lock.
    pub fn observe(&self, lock: LockName) -> watch::Receiver<()> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, sender| sender.receiver_count() > 0);
        let receiver = locks.entry(lock).or_default().subscribe();
        self.count.store(locks.len(), Ordering::Release);
        receiver
    }

    /// These locks have changed hands.
    pub fn changed(&self, names: &[LockName]) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            if let Some(sender) = locks.get(name) {
                sender.send_replace(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_observes_is_told_and_who_has_gone_is_forgotten() {
        let observers = Observers::default();
        observers.changed(&["a".into()]);
        let mut first = observers.observe("a".into());
        let other = observers.observe("b".into());
        assert!(!first.has_changed().unwrap());
        observers.changed(&["a".into(), "c".into()]);
        assert!(first.has_changed().unwrap() && !other.has_changed().unwrap());
        first.mark_unchanged();
        drop(other);
        observers.observe("c".into());
        assert_eq!(observers.locks.lock().unwrap().keys().collect::<Vec<_>>(), ["a", "c"]);
    }
}
