//! Files and folders that only the node's own user may read. Everything below the data folder is created and opened here: log
//! and snapshots contain names, owners, values and the hashes of access tokens.
//!
//! Symbolic links in the place of a file are not followed: an attacker who can plant one could make the node read or
//! overwrite another file of its user.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Permission bits of the group and others.
const NOT_OWNER: u32 = 0o077;
/// Permission bits of others.
const OTHERS: u32 = 0o007;
const ROOT: u32 = 0;

/// Returns options for a private file. The caller chooses between read, write and create.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

/// Reads a private file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    options().read(true).open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Creates a folder and its parents, if they do not exist.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// A file or folder that other users can use, with the remedy.
#[derive(Debug)]
pub(crate) struct Insecure {
    pub(crate) path: PathBuf,
    pub(crate) what: String,
}

/// Makes an existing folder private.
pub(crate) fn make_folder_private(path: &Path, insecure: &mut Vec<Insecure>) -> io::Result<()> {
    // The top folder of a volume may belong to root, with any mode. The files in it are private all the same, and files
    // of other users in it are refused.
    make_private(path, &fs::metadata(path)?, FOLDER_MODE, 0, insecure)
}

/// Makes an existing file private. A symbolic link in its place is refused when it is opened.
pub(crate) fn make_file_private(path: &Path, insecure: &mut Vec<Insecure>) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => make_private(path, &found, FILE_MODE, OTHERS, insecure),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes a folder and the files in it private, if it exists.
pub(crate) fn make_all_private(folder: &Path, insecure: &mut Vec<Insecure>) -> io::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    make_folder_private(folder, insecure)?;
    for entry in fs::read_dir(folder)? {
        make_file_private(&entry?.path(), insecure)?;
    }
    Ok(())
}

/// Removes the permissions of other users. `refused` are the permissions that they may not have on what belongs to root, whose
/// mode only root can change.
fn make_private(
    path: &Path,
    found: &Metadata,
    mode: u32,
    refused: u32,
    insecure: &mut Vec<Insecure>,
) -> io::Result<()> {
    let (owner, own) = (found.uid(), rustix::process::geteuid().as_raw());
    let mut note = |what| insecure.push(Insecure { path: path.to_owned(), what });
    if owner != own && owner != ROOT {
        note(format!(
            "it belongs to user {owner}, who can change it, and the node runs as user {own}: change its owner with chown -R \
             {own}, or run the node as user {owner}"
        ));
        return Ok(());
    }
    if found.mode() & NOT_OWNER == 0 {
        return Ok(());
    }
    let (left, refused) = match owner == own {
        true => (restrict(path, mode)?, NOT_OWNER),
        false => (found.mode(), refused),
    };
    if left & refused != 0 {
        note(format!(
            "other users can use it (mode {:o}), and the node failed to change that: restrict it with chmod {mode:o}",
            left & 0o7777
        ));
    } else if left & NOT_OWNER != 0 {
        tracing::warn!(
            path = %path.display(),
            mode = format!("{:o}", left & 0o7777),
            "this belongs to root, and other users can use it: only root can restrict it"
        );
    }
    Ok(())
}

/// Changes the mode. Returns the mode afterwards, which some file systems do not change.
fn restrict(path: &Path, mode: u32) -> io::Result<u32> {
    let file = options().read(true).open(path).or_else(|error| match path.is_dir() {
        // The folder itself may be a link to another disk.
        true => File::open(path),
        false => Err(error),
    })?;
    if let Err(error) = file.set_permissions(Permissions::from_mode(mode)) {
        tracing::warn!(path = %path.display(), %error, "failed to change the mode");
    }
    Ok(file.metadata()?.mode())
}

/// Reports whether all users of the machine may read a file.
pub(crate) fn is_world_readable(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.mode() & 0o004 != 0)
}
