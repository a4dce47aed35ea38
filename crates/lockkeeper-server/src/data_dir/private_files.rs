//! Files and folders that only the node's own user may read. Everything below the data folder is created here: log and
//! snapshots contain names, owners, values and the hashes of access tokens.
//!
//! Symbolic links are not followed: an attacker who can plant one could make the node overwrite another file of its
//! user.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Permission bits of the group and others.
const NOT_OWNER: u32 = 0o077;

/// Returns options for a private file. The caller chooses between read, write and create.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

/// Creates a folder and its parents, if they do not exist.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// Removes the permissions of other users from an existing folder. A folder with another owner, such as a volume that is
/// accessible through its group, is not changed: its files are private anyway.
pub(crate) fn make_folder_private(path: &Path) -> io::Result<()> {
    let found = fs::metadata(path)?;
    if found.mode() & NOT_OWNER == 0 {
        return Ok(());
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        tracing::warn!(
            folder = %path.display(),
            mode = format!("{:o}", found.mode() & 0o7777),
            "the data folder belongs to another user: other users may list its files, but the files themselves are private"
        );
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE))
}

/// Reports whether all users of the machine may read a file.
pub(crate) fn is_world_readable(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.mode() & 0o004 != 0)
}
