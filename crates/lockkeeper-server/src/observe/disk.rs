//! The room on the disk of the data folder.

use std::path::Path;

use serde::Serialize;

/// The room on a disk, and what the node has taken of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Disk {
    /// What is left for this process.
    pub free_bytes: u64,
    /// The size of the disk.
    pub total_bytes: u64,
    /// What the log and the snapshots take.
    pub data_bytes: u64,
}

impl Disk {
    /// Looks at a folder. A few system calls: not for every request.
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

/// The size of all files in a folder and `depth` folders below.
fn size(folder: &Path, depth: usize) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        // A file may be recycled meanwhile.
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
    fn what_is_in_the_folder_is_counted() {
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
