//! The wall clock of a process, moved by libfaketime.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::ServerError;

/// Paths of the library on Debian.
const PLACES: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
];

fn library() -> Result<PathBuf, ServerError> {
    let library = PLACES.iter().map(PathBuf::from).find(|path| path.exists());
    library.ok_or(ServerError::Missing {
        program: "libfaketime",
        advice: "apt-get install faketime (it moves the clock of one process)",
    })
}

/// Environment variables of a process whose wall clock is ahead of the machine's from the start.
pub(crate) fn ahead(by: Duration) -> Result<Vec<(String, String)>, ServerError> {
    let library = library()?.to_string_lossy().into_owned();
    let by = format!("+{}s", by.as_secs());
    let variables =
        [("LD_PRELOAD", library), ("FAKETIME", by), ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned())];
    Ok(variables.map(|(name, value)| (name.to_owned(), value)).to_vec())
}

/// The wall clock of one process. Its monotonic clock is not changed.
#[derive(Debug, Clone)]
pub struct MovedClock {
    library: PathBuf,
    file: PathBuf,
}

impl MovedClock {
    /// A clock that shows the machine's time until it is moved, through a file in this folder.
    ///
    /// # Errors
    ///
    /// If libfaketime is not installed.
    pub fn new(folder: &Path) -> Result<MovedClock, ServerError> {
        let clock = MovedClock { library: library()?, file: folder.join("clock") };
        clock.set_ahead(Duration::ZERO)?;
        Ok(clock)
    }

    /// Sets it ahead of the machine's clock.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn set_ahead(&self, by: Duration) -> Result<(), ServerError> {
        // Replaced atomically: the process reads it whenever it reads the clock.
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("+{}\n", by.as_secs()))
            .and_then(|()| std::fs::rename(&new, &self.file))
            .map_err(ServerError::io("failed to write the file of the moved clock"))
    }

    /// Environment variables of the process.
    pub fn environment(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        // Redis is linked with jemalloc, which reads the clock before libfaketime is ready: both deadlock. The allocator
        // of glibc, preloaded before it, does not read the clock.
        let places = self.library.ancestors().skip(1).take(3);
        let allocator = places.map(|place| place.join("libc_malloc_debug.so.0")).find(|path| path.exists());
        let preload: Vec<String> = allocator.iter().chain([&self.library]).map(|path| text(path)).collect();
        [
            ("LD_PRELOAD", preload.join(":")),
            ("FAKETIME_TIMESTAMP_FILE", text(&self.file)),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}
