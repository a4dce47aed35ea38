//! Files and folders that only the node's own user may read. Everything below the data folder is created and opened here: log
//! and snapshots contain names, owners, values and the hashes of access tokens.
//!
//! Symbolic links in the place of a file or a folder are not followed, and files with several names (hard links) are not
//! overwritten: an attacker who can plant one could make the node read, change or overwrite another file of its user.

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

/// Fails for a file with several names: what is written to it would appear in another file of this user.
pub(crate) fn check_only_name(metadata: &Metadata, path: &Path) -> io::Result<()> {
    match metadata.nlink() {
        0 | 1 => Ok(()),
        names => Err(io::Error::other(format!(
            "{} is a hard link to a file with {names} names, which the node would overwrite: delete this link",
            path.display()
        ))),
    }
}

/// Creates an empty private file, or empties it if it exists.
pub(crate) fn create_empty(path: &Path) -> io::Result<File> {
    // Truncated only after the check.
    let file = options().write(true).create(true).truncate(false).open(path)?;
    check_only_name(&file.metadata()?, path)?;
    file.set_len(0)?;
    Ok(file)
}

/// A file or folder that other users can use, with the remedy.
#[derive(Debug)]
pub(crate) struct Insecure {
    pub(crate) path: PathBuf,
    pub(crate) what: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The data folder itself. It may be a link to another disk.
    DataFolder,
    Folder,
    File,
}

impl Kind {
    fn mode(self) -> u32 {
        match self {
            Kind::DataFolder | Kind::Folder => FOLDER_MODE,
            Kind::File => FILE_MODE,
        }
    }

    /// Permissions that other users may not have on what belongs to root, whose mode only root can change. The top folder of a
    /// volume may belong to root, with any mode: the files in it are private all the same.
    fn refused_of_root(self) -> u32 {
        match self {
            Kind::DataFolder | Kind::Folder => 0,
            Kind::File => OTHERS,
        }
    }
}

/// A file or folder that must be private, as it was found.
#[derive(Debug)]
struct Found {
    path: PathBuf,
    kind: Kind,
    metadata: Metadata,
}

/// The files and folders of a node that must be private. Their owners are checked first, and their modes are changed
/// afterwards: otherwise a planted link could make the node change the files of its user elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    found: Vec<Found>,
    foreign: Vec<Insecure>,
}

impl Inventory {
    /// Adds the data folder itself.
    pub(crate) fn add_data_folder(&mut self, path: &Path) -> io::Result<()> {
        self.add(path, Kind::DataFolder, fs::metadata(path)?);
        Ok(())
    }

    /// Adds a file, if it exists. A symbolic link in its place is refused when it is opened.
    pub(crate) fn add_file(&mut self, path: &Path) -> io::Result<()> {
        if let Some(metadata) = metadata(path)?
            && metadata.is_file()
        {
            self.add(path, Kind::File, metadata);
        }
        Ok(())
    }

    /// Adds a file that the node overwrites, if it exists.
    pub(crate) fn add_overwritten_file(&mut self, path: &Path) -> io::Result<()> {
        match metadata(path)? {
            Some(metadata) if metadata.is_file() => check_only_name(&metadata, path)?,
            _ => {}
        }
        self.add_file(path)
    }

    /// Adds a folder and the files in it, if it exists.
    pub(crate) fn add_folder(&mut self, folder: &Path) -> io::Result<()> {
        let Some(metadata) = metadata(folder)? else { return Ok(()) };
        if metadata.is_symlink() {
            return Err(io::Error::other(format!(
                "{} is a symbolic link, which the node does not follow: replace it with the folder behind it, or mount the \
                 other disk there",
                folder.display()
            )));
        }
        if metadata.is_dir() && self.add(folder, Kind::Folder, metadata) {
            for entry in fs::read_dir(folder)? {
                self.add_file(&entry?.path())?;
            }
        }
        Ok(())
    }

    /// Returns whether it belongs to this user or root.
    fn add(&mut self, path: &Path, kind: Kind, metadata: Metadata) -> bool {
        let (owner, own) = (metadata.uid(), own_user());
        let path = path.to_owned();
        if owner != own && owner != ROOT {
            let what = format!(
                "it belongs to user {owner}, who can change it, and the node runs as user {own}: change its owner with chown -R \
                 {own}, or run the node as user {owner}"
            );
            self.foreign.push(Insecure { path, what });
            return false;
        }
        self.found.push(Found { path, kind, metadata });
        true
    }

    /// Removes and returns what belongs to other users.
    pub(crate) fn take_foreign(&mut self) -> Vec<Insecure> {
        std::mem::take(&mut self.foreign)
    }

    /// Removes the permissions of other users, of folders before the files in them. Returns what they can still use.
    pub(crate) fn restrict(self) -> io::Result<Vec<Insecure>> {
        let mut insecure = Vec::new();
        for found in &self.found {
            insecure.extend(found.restrict()?);
        }
        Ok(insecure)
    }
}

impl Found {
    fn restrict(&self) -> io::Result<Option<Insecure>> {
        let (mode, found) = (self.kind.mode(), self.metadata.mode());
        if found & NOT_OWNER == 0 {
            return Ok(None);
        }
        let (left, refused) = match self.metadata.uid() == own_user() {
            true => (self.set_mode(mode)?, NOT_OWNER),
            false => (found, self.kind.refused_of_root()),
        };
        if left & refused != 0 {
            let what = format!(
                "other users can use it (mode {:o}), and the node failed to change that: restrict it with chmod {mode:o}",
                left & 0o7777
            );
            return Ok(Some(Insecure { path: self.path.clone(), what }));
        }
        if left & NOT_OWNER != 0 {
            tracing::warn!(
                path = %self.path.display(),
                mode = format!("{:o}", left & 0o7777),
                "this belongs to root, and other users can use it: only root can restrict it"
            );
        }
        Ok(None)
    }

    /// Changes the mode. Returns the mode afterwards, which some file systems do not change.
    fn set_mode(&self, mode: u32) -> io::Result<u32> {
        let file = self.open()?;
        let now = file.metadata()?;
        if (now.dev(), now.ino()) != (self.metadata.dev(), self.metadata.ino()) {
            return Err(io::Error::other(format!(
                "{} was replaced while the node started",
                self.path.display()
            )));
        }
        if let Err(error) = file.set_permissions(Permissions::from_mode(mode)) {
            tracing::warn!(path = %self.path.display(), %error, "failed to change the mode");
        }
        Ok(file.metadata()?.mode())
    }

    fn open(&self) -> io::Result<File> {
        let flags = match self.kind {
            Kind::DataFolder => OFlags::DIRECTORY,
            Kind::Folder => OFlags::DIRECTORY | OFlags::NOFOLLOW,
            // A pipe in the place of the file would block.
            Kind::File => OFlags::NOFOLLOW | OFlags::NONBLOCK,
        };
        OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(&self.path)
    }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the metadata of what is at a path, itself if it is a link.
fn metadata(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reports whether all users of the machine may read a file.
pub(crate) fn is_world_readable(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.mode() & 0o004 != 0)
}

/// Reports whether a user other than this one and root can change a file. Members of its group do not count.
pub(crate) fn is_changeable_by_others(path: &Path) -> io::Result<bool> {
    let found = fs::metadata(path)?;
    Ok(found.mode() & 0o002 != 0 || ![own_user(), ROOT].contains(&found.uid()))
}
