//! The line of a keeper's own tasks in front of a lock: its head asks the engine, the others come after it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smol_str::SmolStr;

/// The lines of all locks that somebody here waits for.
#[derive(Default)]
pub(crate) struct Lines {
    lines: Mutex<HashMap<SmolStr, Line>>,
}

#[derive(Clone, Default)]
struct Line {
    /// Tokio's mutex lets them in one after the other, in the order in which they came.
    head: Arc<tokio::sync::Mutex<()>>,
    waiting: usize,
}

/// A place in the line. Dropped, it is left.
pub(crate) struct Place<'a> {
    lines: &'a Lines,
    lock: SmolStr,
    head: Arc<tokio::sync::Mutex<()>>,
}

impl Lines {
    fn lines(&self) -> MutexGuard<'_, HashMap<SmolStr, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn waiting(&self, lock: &str) -> usize {
        self.lines().get(lock).map_or(0, |line| line.waiting)
    }

    pub(crate) fn join(&self, lock: &SmolStr) -> Place<'_> {
        let mut lines = self.lines();
        let line = lines.entry(lock.clone()).or_default();
        line.waiting += 1;
        Place { lines: self, lock: lock.clone(), head: Arc::clone(&line.head) }
    }
}

impl Place<'_> {
    /// Resolves at the head of the line, and stays there for as long as the answer lives.
    pub(crate) async fn head(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.head.lock().await
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lines();
        if let Some(line) = lines.get_mut(&self.lock) {
            line.waiting -= 1;
            if line.waiting == 0 {
                lines.remove(&self.lock);
            }
        }
    }
}
