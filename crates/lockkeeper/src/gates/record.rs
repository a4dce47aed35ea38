//! The highest token of a file, in a small record file beside it.
//!
//! Two slots of 64 bytes, each with a token and a checksum, in plain text. A write overwrites the slot with the lower token,
//! so a write torn by a power loss leaves the other slot intact. The file is created atomically, so one without a valid slot
//! is damaged.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_core::Token;
use smol_str::format_smolstr;

use crate::clock::Moment;
use crate::error::Error;

const SLOT_BYTES: usize = 64;
/// A write takes milliseconds. A process that holds the lock for longer is stopped, or its disk hangs.
const LOCKED_MAX: Duration = Duration::from_secs(10);
/// The pause between two tries: file locks offer no wait with a timeout.
const TRY_AGAIN: Duration = Duration::from_millis(1);

/// An open and locked record: no other process reads or raises it until this is dropped.
pub(super) struct Record {
    file: File,
    path: PathBuf,
    slots: [Option<Token>; 2],
}

impl Record {
    /// Opens and locks the record; creates it if it does not exist.
    pub(super) fn open(path: &Path) -> Result<Record, Error> {
        let until = Moment::now().plus(LOCKED_MAX);
        loop {
            let file = match OpenOptions::new().read(true).write(true).open(path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    create(path).map_err(|error| io_error("create", path, &error))?;
                    continue;
                }
                Err(error) => return Err(io_error("open", path, &error)),
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if Moment::now() < until => {
                    std::thread::sleep(TRY_AGAIN);
                    continue;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::unavailable(format!(
                        "another process has held the gate for {} s: nothing was written; look for a stopped process that \
                         has {} open",
                        LOCKED_MAX.as_secs(),
                        path.display()
                    )));
                }
                Err(TryLockError::Error(error)) => return Err(io_error("lock", path, &error)),
            }
            // Another file may have been put in its place meanwhile.
            let same = match (file.metadata(), fs::metadata(path)) {
                (Ok(ours), Ok(current)) => (ours.dev(), ours.ino()) == (current.dev(), current.ino()),
                _ => false,
            };
            if same {
                return Record::read(file, path);
            }
        }
    }

    fn read(file: File, path: &Path) -> Result<Record, Error> {
        let slots = [0, 1].map(|index| {
            let mut bytes = [0; SLOT_BYTES];
            file.read_exact_at(&mut bytes, index * SLOT_BYTES as u64).ok()?;
            parse(&bytes)
        });
        if slots == [None, None] {
            return Err(Error::Fatal(format_smolstr!(
                "{} is damaged and the highest token is lost: nothing was written. Make sure that no old holder is still \
                 running, then remove the file",
                path.display()
            )));
        }
        Ok(Record { file, path: path.to_owned(), slots })
    }

    pub(super) fn highest(&self) -> Token {
        self.slots[0].max(self.slots[1]).unwrap_or_default()
    }

    /// Admits a token. A higher one is durable when this returns.
    pub(super) fn admit(&mut self, token: Token) -> Result<(), Error> {
        super::admit(token, self.highest())?;
        if token == self.highest() {
            return Ok(());
        }
        // None is less than any token.
        let index = usize::from(self.slots[1] < self.slots[0]);
        self.file
            .write_all_at(&render(token), (index * SLOT_BYTES) as u64)
            .and_then(|()| self.file.sync_data())
            .map_err(|error| io_error("write", &self.path, &error))?;
        self.slots[index] = Some(token);
        Ok(())
    }
}

/// Creates the file atomically.
fn create(path: &Path) -> io::Result<()> {
    let number = getrandom::u64().map_err(io::Error::other)?;
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{number:016x}"));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&new)?;
    let created = file
        .write_all(&[render(Token(0)), render(Token(0))].concat())
        .and_then(|()| file.sync_all())
        .and_then(|()| match fs::hard_link(&new, path) {
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        });
    fs::remove_file(&new)?;
    created?;
    sync_folder(path)
}

/// Makes a new entry of a folder durable.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn checksum(number: &str) -> u32 {
    crc32fast::hash(number.as_bytes())
}

fn render(token: Token) -> [u8; SLOT_BYTES] {
    let number = format!("{:020}", token.0);
    let text = format!("token={number} crc32={:08x}", checksum(&number));
    let mut slot = [b' '; SLOT_BYTES];
    slot[..text.len()].copy_from_slice(text.as_bytes());
    slot[SLOT_BYTES - 1] = b'\n';
    slot
}

fn parse(slot: &[u8]) -> Option<Token> {
    let text = std::str::from_utf8(slot).ok()?.trim_end();
    let (number, sum) = text.strip_prefix("token=")?.split_once(" crc32=")?;
    (u32::from_str_radix(sum, 16).ok()? == checksum(number)).then_some(())?;
    number.parse().ok().map(Token)
}

pub(super) fn io_error(action: &str, path: &Path, error: &io::Error) -> Error {
    Error::unavailable(format!(
        "failed to {action} {}: {error}; check the folder, its permissions and its disk",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_token_is_durable_and_never_decreases() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fence");
        for token in [1, 7, 7, 9] {
            Record::open(&path).unwrap().admit(Token(token)).unwrap();
        }
        let mut record = Record::open(&path).unwrap();
        assert_eq!(record.highest(), Token(9));
        assert_eq!(record.admit(Token(8)).unwrap_err(), Error::StaleToken { last_token: Token(9) });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn one_torn_slot_is_tolerated_and_two_are_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fence");
        for token in [7, 9] {
            Record::open(&path).unwrap().admit(Token(token)).unwrap();
        }
        let whole = fs::read(&path).unwrap();
        for (slot, left) in [(0, 9), (1, 7)] {
            // 7 went to the first slot, 9 to the second.
            let mut torn = whole.clone();
            torn[slot * SLOT_BYTES + 10] ^= 1;
            fs::write(&path, &torn).unwrap();
            assert_eq!(Record::open(&path).unwrap().highest(), Token(left));
        }
        fs::write(&path, vec![0; 128]).unwrap();
        assert_eq!(Record::open(&path).err().unwrap().code(), "fatal");
    }
}
