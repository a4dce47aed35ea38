//! Whose turn it is within a keeper: of all who wait for a lock, one asks the server. A release wakes one of them, and
//! nobody overtakes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smol_str::SmolStr;
use tokio::sync::OwnedMutexGuard;

#[derive(Default)]
pub(super) struct Turns {
    waiting: Mutex<HashMap<SmolStr, Queue>>,
}

struct Queue {
    /// Tokio's mutex lets in whoever came first.
    turn: Arc<tokio::sync::Mutex<()>>,
    count: usize,
}

/// A place in the queue. Dropping it leaves the queue.
pub(super) struct Place<'a> {
    turns: &'a Turns,
    lock: SmolStr,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Turns {
    fn queues(&self) -> MutexGuard<'_, HashMap<SmolStr, Queue>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn somebody_waits(&self, lock: &SmolStr) -> bool {
        self.queues().contains_key(lock)
    }

    pub(super) fn queue_up(&self, lock: &SmolStr) -> Place<'_> {
        let mut queues = self.queues();
        let queue = queues.entry(lock.clone()).or_insert_with(|| Queue { turn: Arc::default(), count: 0 });
        queue.count += 1;
        Place { turns: self, lock: lock.clone(), turn: Arc::clone(&queue.turn) }
    }
}

impl Place<'_> {
    /// Resolves when all who came before have left. Hold on to it while it is your turn.
    pub(super) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut queues = self.turns.queues();
        if let Some(queue) = queues.get_mut(&self.lock) {
            queue.count -= 1;
            if queue.count == 0 {
                queues.remove(&self.lock);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_came_first_is_next_and_a_queue_without_waiters_is_forgotten() {
        let turns = Turns::default();
        let lock = SmolStr::new("a");
        let (first, second, third) = (turns.queue_up(&lock), turns.queue_up(&lock), turns.queue_up(&lock));
        let turn = first.turn().await;
        let mut second_turn = Box::pin(second.turn());
        let mut third_turn = Box::pin(third.turn());
        assert!(futures_util::poll!(&mut second_turn).is_pending());
        assert!(futures_util::poll!(&mut third_turn).is_pending());
        drop(turn);
        assert!(futures_util::poll!(&mut third_turn).is_pending(), "nobody overtakes");
        drop(second_turn);
        let _ = third_turn.await;
        drop((first, second, third));
        assert!(!turns.somebody_waits(&lock));
    }
}
