//! Queues within a keeper, in front of the server's: of all tasks that wait for a lock, only the head contacts the server. A
//! release wakes one task, and the order is FIFO.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use smol_str::SmolStr;
use tokio::sync::OwnedMutexGuard;

use super::locked;

/// The queues of all locks that tasks of this keeper wait for.
#[derive(Default)]
pub(crate) struct LocalQueues {
    queues: Mutex<HashMap<SmolStr, Queue>>,
}

#[derive(Default)]
struct Queue {
    /// Tokio's mutex is FIFO.
    head: Arc<tokio::sync::Mutex<()>>,
    waiting: usize,
}

/// A place in the queue of a lock. Dropping it leaves the queue.
pub(crate) struct QueuePlace<'a> {
    queues: &'a LocalQueues,
    lock: SmolStr,
    head: Arc<tokio::sync::Mutex<()>>,
}

impl LocalQueues {
    /// The number of tasks that wait for the lock, including the head.
    #[cfg_attr(not(any(feature = "_leases", feature = "consul")), allow(dead_code))]
    pub(crate) fn waiting(&self, lock: &str) -> usize {
        locked(&self.queues).get(lock).map_or(0, |queue| queue.waiting)
    }

    /// Takes a place at the end of the queue.
    pub(crate) fn join(&self, lock: &SmolStr) -> QueuePlace<'_> {
        let mut queues = locked(&self.queues);
        let queue = queues.entry(lock.clone()).or_default();
        queue.waiting += 1;
        QueuePlace { queues: self, lock: lock.clone(), head: Arc::clone(&queue.head) }
    }
}

impl QueuePlace<'_> {
    /// Resolves at the head of the queue. The task stays at the head while it holds the guard.
    pub(crate) async fn head(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.head).lock_owned().await
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut queues = locked(&self.queues.queues);
        if let Some(queue) = queues.get_mut(&self.lock) {
            queue.waiting -= 1;
            if queue.waiting == 0 {
                queues.remove(&self.lock);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn queue_is_fifo_and_removed_when_empty() {
        let queues = LocalQueues::default();
        let lock = SmolStr::new("a");
        let (first, second, third) = (queues.join(&lock), queues.join(&lock), queues.join(&lock));
        let head = first.head().await;
        let mut second_head = Box::pin(second.head());
        let mut third_head = Box::pin(third.head());
        assert!(futures_util::poll!(&mut second_head).is_pending());
        assert!(futures_util::poll!(&mut third_head).is_pending());
        drop(head);
        assert!(futures_util::poll!(&mut third_head).is_pending(), "the third overtakes the second");
        drop(second_head);
        let _ = third_head.await;
        assert_eq!(queues.waiting("a"), 3);
        drop((first, second, third));
        assert_eq!(queues.waiting("a"), 0);
    }
}
