//! Work that waits for a disk, on a thread of its own.

use std::io;

use tokio::sync::oneshot;

const LEAST_URGENT: i32 = 19;

/// Does the work beside the thread that serves. In a simulation there is one thread only.
pub(crate) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    #[cfg(feature = "simulation")]
    if lockkeeper_net::simulation::host().is_some() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}

/// The same for long work that must not get into the way of the thread that serves: it gets what time that leaves.
pub(crate) async fn run_aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    #[cfg(feature = "simulation")]
    if lockkeeper_net::simulation::host().is_some() {
        return Ok(work());
    }
    let (sender, done) = oneshot::channel();
    std::thread::Builder::new().name("lockkeeper-aside".to_owned()).spawn(move || {
        // Of this thread alone. Where it is not allowed, the work is done all the same.
        if let Err(error) = rustix::process::nice(LEAST_URGENT) {
            tracing::debug!(%error, "the thread for long work is as urgent as the others");
        }
        let _ = sender.send(work());
    })?;
    done.await.map_err(io::Error::other)
}

/// Drops something large, such as a whole table, beside the thread that serves.
pub(crate) fn drop_aside<T: Send + 'static>(large: T) {
    #[cfg(test)]
    tests::count_dropped();
    #[cfg(feature = "simulation")]
    if lockkeeper_net::simulation::host().is_some() {
        return drop(large);
    }
    // If there is no thread, the closure is dropped here, and with it what it owns.
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

    /// What this thread has had dropped by others.
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
    async fn long_work_is_the_least_urgent_and_nothing_else_is() {
        let before = rustix::process::nice(0).expect("known");
        let aside = run_aside(|| rustix::process::nice(0)).await.expect("done").expect("known");
        assert_eq!(aside, LEAST_URGENT);
        assert_eq!(rustix::process::nice(0).expect("known"), before);
    }
}
