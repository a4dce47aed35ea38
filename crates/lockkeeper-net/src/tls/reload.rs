//! A value that is built from files, and rebuilt when they change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::TlsError;

/// Shortest interval between two checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Reloadable<T> {
    files: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, TlsError> + Send + Sync>,
    state: Mutex<State<T>>,
}

struct State<T> {
    current: Arc<T>,
    stamps: Vec<Stamp>,
    checked: Instant,
}

/// Identifies the version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp(Option<(SystemTime, u64, u64)>);

impl Stamp {
    fn of(path: &Path) -> Stamp {
        use std::os::unix::fs::MetadataExt;
        let found = std::fs::metadata(path).ok();
        Stamp(found.and_then(|found| Some((found.modified().ok()?, found.len(), found.ino()))))
    }
}

impl<T> Reloadable<T> {
    pub(super) fn new(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Reloadable<T>, TlsError> {
        // Taken before the files are read, so that a change during the read is detected at the next check.
        let stamps = files.iter().map(|path| Stamp::of(path)).collect();
        let current = Arc::new(make()?);
        let state = Mutex::new(State { current, stamps, checked: Instant::now() });
        Ok(Reloadable { files, make: Box::new(make), state })
    }

    /// The value of the current files, or the previous value if they cannot be used: an incomplete renewal must not end the
    /// service.
    pub(super) fn current(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.checked.elapsed() < CHECK_INTERVAL {
            return state.current.clone();
        }
        state.checked = Instant::now();
        let stamps: Vec<Stamp> = self.files.iter().map(|path| Stamp::of(path)).collect();
        if stamps == state.stamps {
            return state.current.clone();
        }
        match (self.make)() {
            Ok(value) => {
                tracing::info!(files = ?self.files, "reloaded certificates");
                state.current = Arc::new(value);
                state.stamps = stamps;
            }
            // A certificate and its key are two files, and one may not be replaced yet. The next check retries.
            Err(error) => tracing::warn!(%error, "failed to reload certificates; keeping the previous ones"),
        }
        state.current.clone()
    }
}
