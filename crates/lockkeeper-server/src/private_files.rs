//! Files and folders that nobody but the node's own user may read. Everything below the data folder is made here: log and
//! snapshots hold names, owners, values and the hashes of tokens.
//!
//! A symbolic link in the place of a file is not followed: whoever could plant one would have the node overwrite another
//! file of its user.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// What the group and others may do.
const NOT_OWNER: u32 = 0o077;

/// How a private file is opened: read, written and created as the caller says, by its owner alone.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

/// Makes a folder with those above it, if it is not there.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// Closes a folder that is there already to everybody else. One that belongs to somebody else, such as a volume whose
/// group is ours, stays as it is: its files are closed all the same.
pub(crate) fn close_folder(path: &Path) -> io::Result<()> {
    let found = fs::metadata(path)?;
    if found.mode() & NOT_OWNER == 0 {
        return Ok(());
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        tracing::warn!(
            folder = %path.display(),
            mode = format!("{:o}", found.mode() & 0o7777),
            "the data folder belongs to another user, and others may list its files; the files themselves are private"
        );
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE))
}

/// Whether everybody on the machine may read a file.
pub(crate) fn is_world_readable(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.mode() & 0o004 != 0)
}
