//! Work that waits for a disk, on a thread of its own.

use std::io;

/// Does the work beside the thread that serves. In a simulation there is one thread only.
pub(crate) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    #[cfg(feature = "simulation")]
    if lockkeeper_proto::simulation::host().is_some() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}
