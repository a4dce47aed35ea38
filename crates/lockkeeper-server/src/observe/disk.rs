//! Disk usage of the data folder.

use std::path::Path;

use serde::Serialize;

/// The space on a disk, and how much of it the node uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Disk {
    /// Space available to this process.
    pub free_bytes: u64,
    /// Size of the disk.
    pub total_bytes: u64,
    /// Space used by the log and the snapshots.
    pub data_bytes: u64,
}

impl Disk {
    /// Reads the disk usage of a folder. Takes a few blocking system calls, so it is not for every request.
    pub fn of(folder: &Path) -> std::io::Result<Disk> {
        let disk = rustix::fs::statvfs(folder)?;
        let unit = disk.f_frsize;
        Ok(Disk {
            free_bytes: disk.f_bavail.saturating_mul(unit),
            total_bytes: disk.f_blocks.saturating_mul(unit),
            data_bytes: size(folder, 3)?,
        })
    }
}

/// Returns the size of all files in a folder and in `depth` levels of subfolders.
fn size(folder: &Path, depth: usize) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        // A file may be removed meanwhile.
        let Ok(about) = entry.metadata() else { continue };
        bytes += match (about.is_dir(), depth) {
            (true, 0) => 0,
            (true, _) => size(&entry.path(), depth - 1).unwrap_or(0),
            (false, _) => about.len(),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_below_the_folder_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), [0; 1_000]).unwrap();
        std::fs::create_dir(folder.path().join("log")).unwrap();
        std::fs::write(folder.path().join("log/b"), [0; 500]).unwrap();
        let disk = Disk::of(folder.path()).unwrap();
        assert_eq!(disk.data_bytes, 1_500);
        assert!(disk.free_bytes <= disk.total_bytes && disk.total_bytes > 0);
        assert!(Disk::of(Path::new("/there/is/no/such/folder")).is_err());
    }
}
