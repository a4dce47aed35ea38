//! Blocking and long work on other threads than the serving one.

use std::io;

use tokio::sync::oneshot;

const LOWEST_PRIORITY: i32 = 19;

/// Runs blocking work on another thread. A simulation has only one thread and runs it inline.
pub(crate) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    #[cfg(feature = "simulation")]
    if lockkeeper_net::simulation::host().is_some() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}

/// Runs long work on a thread with the lowest priority, so that it does not slow the serving thread down.
pub(crate) async fn run_aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    #[cfg(feature = "simulation")]
    if lockkeeper_net::simulation::host().is_some() {
        return Ok(work());
    }
    let (sender, done) = oneshot::channel();
    std::thread::Builder::new().name("lockkeeper-aside".to_owned()).spawn(move || {
        // Affects this thread only. If it is not permitted, the work runs at normal priority.
        if let Err(error) = rustix::process::nice(LOWEST_PRIORITY) {
            tracing::debug!(%error, "failed to lower the priority of a background thread");
        }
        let _ = sender.send(work());
    })?;
    done.await.map_err(io::Error::other)
}

/// Drops a large value, such as a whole table, on another thread.
pub(crate) fn drop_aside<T: Send + 'static>(large: T) {
    #[cfg(test)]
    tests::count_dropped();
    #[cfg(feature = "simulation")]
    if lockkeeper_net::simulation::host().is_some() {
        return drop(large);
    }
    // If no thread can be started, the closure is dropped here together with the value.
    if let Err(error) =
        std::thread::Builder::new().name("lockkeeper-drop".to_owned()).spawn(move || drop(large))
    {
        tracing::debug!(%error, "failed to start a thread to free memory");
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};

    use super::*;

    thread_local! {
        static DROPPED: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count_dropped() {
        DROPPED.set(DROPPED.get() + 1);
    }

    /// Returns how many values this thread has had dropped on other threads.
    pub(crate) fn dropped_aside() -> usize {
        DROPPED.get()
    }

    struct Large(mpsc::Sender<ThreadId>);

    impl Drop for Large {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).ok();
        }
    }

    #[test]
    fn large_value_is_dropped_on_another_thread() {
        let (sender, dropped) = mpsc::channel();
        drop_aside(Large(sender));
        assert_ne!(dropped.recv().expect("dropped"), thread::current().id());
    }

    #[tokio::test]
    async fn long_work_has_the_lowest_priority_and_the_caller_keeps_its_own() {
        let before = rustix::process::nice(0).expect("known");
        let aside = run_aside(|| rustix::process::nice(0)).await.expect("done").expect("known");
        assert_eq!(aside, LOWEST_PRIORITY);
        assert_eq!(rustix::process::nice(0).expect("known"), before);
    }
}
