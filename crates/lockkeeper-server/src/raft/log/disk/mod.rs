//! What the log asks of a disk: one flat folder of files that are created at their full size and never grow.
//!
//! The log goes through this trait alone, so that the embedded engine can keep it in memory, and tests and
//! the simulation can tear, lose and flip what it wrote.

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

/// The unit that a disk writes whole or not at all, and by which torn writes are recognised.
pub const SECTOR_BYTES: usize = 512;

/// A folder.
pub trait Disk: Send + Sync + Debug {
    /// The folder's name, for messages to people.
    fn folder(&self) -> String;
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// A new file with this many zero bytes, really written: later writes need no new blocks, hence no file
    /// metadata. Neither the file nor its name is durable yet.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;
    /// A file that exists.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Gives a file another name, durable after [`Disk::sync_folder`].
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file, durable after [`Disk::sync_folder`]. Whoever has it open can still read it.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes all names durable.
    fn sync_folder(&self) -> io::Result<()>;
    /// How long a sync takes on the clock of a simulation, where no call can block.
    fn sync_pause(&self) -> Duration {
        Duration::ZERO
    }
}

/// An open file.
pub trait DiskFile: Send + Sync + Debug {
    /// The size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Fills the whole buffer from this offset, or fails.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all bytes at this offset, or fails and may have written some.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes all that was written durable (fdatasync). After an error nothing is known about any write since
    /// the last success, and asking again proves nothing: the kernel may have dropped the pages.
    fn sync(&self) -> io::Result<()>;
}
