//! Disk interface of the log: one flat folder of files that are created at their full size and never grow.
//!
//! The log uses only this trait, so that the embedded engine can keep it in memory, and tests and the simulation can
//! tear, lose and corrupt its writes.

#[cfg(any(test, feature = "simulation", feature = "fuzz"))]
mod faulty;
mod memory;
mod real;

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(test, feature = "simulation", feature = "fuzz"))]
pub use faulty::{Faults, FaultyDisk};
pub use memory::MemoryDisk;
pub use real::RealDisk;

/// Unit that a disk writes completely or not at all. Torn writes are detected per sector.
pub const SECTOR_BYTES: usize = 512;

/// A folder.
pub trait Disk: Send + Sync + Debug {
    /// Returns the folder's name, for messages.
    fn folder(&self) -> String;
    /// Lists the names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates a file with this many zero bytes. The zeros are really written, so that later writes allocate no blocks
    /// and change no metadata. Neither the file nor its name is durable yet.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file, durable after [`Disk::sync_folder`].
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file, durable after [`Disk::sync_folder`]. Open handles can still read it.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes all names durable.
    fn sync_folder(&self) -> io::Result<()>;
    /// Returns the duration of a sync on the clock of a simulation, where no call can block.
    fn sync_pause(&self) -> Duration {
        Duration::ZERO
    }
}

/// An open file.
pub trait DiskFile: Send + Sync + Debug {
    /// Returns the size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Fills the whole buffer from this offset, or fails.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all bytes at this offset. If it fails, some may be written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes all writes durable (fdatasync). After an error the state of all writes since the last success is
    /// unknown, and a retry proves nothing: the kernel may have dropped the pages.
    fn sync(&self) -> io::Result<()>;
    /// Reports whether the file still has a name. A deleted file accepts writes until it is closed, but loses them then.
    fn has_name(&self) -> io::Result<bool> {
        Ok(true)
    }
}
