//! Work that waits for a disk, on a thread of its own.

use std::io;

use tokio::sync::oneshot;

const LEAST_URGENT: i32 = 19;

/// Does the work beside the thread that serves. In a simulation there is one thread only.
pub(crate) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    #[cfg(feature = "simulation")]
    if lockkeeper_proto::simulation::host().is_some() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}

/// The same for long work that must not get into the way of the thread that serves: it gets what time that leaves.
pub(crate) async fn run_aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    #[cfg(feature = "simulation")]
    if lockkeeper_proto::simulation::host().is_some() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_work_is_the_least_urgent_and_nothing_else_is() {
        let before = rustix::process::nice(0).expect("known");
        let aside = run_aside(|| rustix::process::nice(0)).await.expect("done").expect("known");
        assert_eq!(aside, LEAST_URGENT);
        assert_eq!(rustix::process::nice(0).expect("known"), before);
    }
}
