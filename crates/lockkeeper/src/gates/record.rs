//! The highest token of a file, in a small file beside it.
//!
//! Two slots of 64 bytes, each with a token and a checksum, in plain text. The one with the lower token is overwritten, so
//! that a write which is torn by a power cut leaves the other. The file is born whole; one without a sound slot is damage.

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
/// A write takes milliseconds. Whoever keeps the lock for longer is stopped, or its disk is.
const LOCKED_MAX: Duration = Duration::from_secs(10);
/// Between two tries; nothing wakes a thread that waits for a lock with a limit.
const TRY_AGAIN: Duration = Duration::from_millis(1);

/// The record, open and locked: no other process reads or raises it until this is dropped.
pub(super) struct Record {
    file: File,
    path: PathBuf,
    slots: [Option<Token>; 2],
}

impl Record {
    /// Opens and locks it; makes it if it is not there.
    pub(super) fn open(path: &Path) -> Result<Record, Error> {
        let until = Moment::now().plus(LOCKED_MAX);
        loop {
            let file = match OpenOptions::new().read(true).write(true).open(path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    create(path).map_err(|error| cannot("made", path, &error))?;
                    continue;
                }
                Err(error) => return Err(cannot("opened", path, &error)),
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if Moment::now() < until => {
                    std::thread::sleep(TRY_AGAIN);
                    continue;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::unavailable(format!(
                        "another process has been in the middle of a write for {} s: nothing was written; look for a process \
                         that is stopped and has {} open",
                        LOCKED_MAX.as_secs(),
                        path.display()
                    )));
                }
                Err(TryLockError::Error(error)) => return Err(cannot("locked", path, &error)),
            }
            // Somebody may have put another file in its place meanwhile.
            let same = match (file.metadata(), fs::metadata(path)) {
                (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
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
                "{} is damaged, and with it the highest token is lost: nothing was written. Make sure that no old holder is at \
                 work any more, then remove it",
                path.display()
            )));
        }
        Ok(Record { file, path: path.to_owned(), slots })
    }

    pub(super) fn highest(&self) -> Token {
        self.slots[0].max(self.slots[1]).unwrap_or_default()
    }

    /// Lets a token in; a higher one is on the disk before this returns.
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
            .map_err(|error| cannot("written", &self.path, &error))?;
        self.slots[index] = Some(token);
        Ok(())
    }
}

/// Makes the file, whole or not at all.
fn create(path: &Path) -> io::Result<()> {
    let number = getrandom::u64().map_err(io::Error::other)?;
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{number:016x}"));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&new)?;
    let born = file
        .write_all(&[render(Token(0)), render(Token(0))].concat())
        .and_then(|()| file.sync_all())
        .and_then(|()| match fs::hard_link(&new, path) {
            // Somebody else was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        });
    fs::remove_file(&new)?;
    born?;
    sync_folder(path)
}

/// Makes a new name in a folder durable.
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

pub(super) fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::unavailable(format!(
        "{} cannot be {what} ({error}): look at the folder, its rights and its disk",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_kept_and_never_goes_down() {
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
    fn a_torn_slot_leaves_the_other_and_two_are_damage() {
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
