//! A value that is built from files, and rebuilt when they change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::TlsError;

/// Shortest interval between two checks of the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Reloadable<T> {
    files: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, TlsError> + Send + Sync>,
    state: Mutex<State<T>>,
}

struct State<T> {
    current: Arc<T>,
    stamps: Vec<Stamp>,
    looked: Instant,
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
        // Taken before the files are read: a change during the read is noticed at the next check.
        let stamps = files.iter().map(|path| Stamp::of(path)).collect();
        let current = Arc::new(make()?);
        let state = Mutex::new(State { current, stamps, looked: Instant::now() });
        Ok(Reloadable { files, make: Box::new(make), state })
    }

    /// The value of the current files. If they cannot be used, the value of the files before: an incomplete renewal must not
    /// end the service.
    pub(super) fn current(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() < LOOK_EVERY {
            return state.current.clone();
        }
        state.looked = Instant::now();
        let stamps: Vec<Stamp> = self.files.iter().map(|path| Stamp::of(path)).collect();
        if stamps == state.stamps {
            return state.current.clone();
        }
        match (self.make)() {
            Ok(made) => {
                tracing::info!(files = ?self.files, "certificates read anew");
                state.current = Arc::new(made);
                state.stamps = stamps;
            }
            // A certificate and its key are two files, and one may not be replaced yet. The next check tries again.
            Err(error) => tracing::warn!(%error, "changed certificates cannot be used; the former ones are"),
        }
        state.current.clone()
    }
}
