//! In a folder of this machine.
//!
//! One file, `tokens`, to which a line is added for each token that is higher than the one before:
//! `<checksum> <token> <lock, percent-encoded>`. It is read when it is opened, and written anew when most of its lines are
//! out of date.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_core::Token;
use smol_str::format_smolstr;

use super::{LOCKS_MAX, Raising, Tokens, too_many};
use crate::error::Error;
use crate::gates::admit;
use crate::gates::http::header::{decode, encode};

/// Lines that are out of date and may stay.
const OLD_LINES_MAX: usize = 10_000;

/// Kept in a folder, and over restarts and power cuts: a higher token is on the disk before its request goes on. One process
/// at a time has the folder.
#[derive(Debug, Clone)]
pub struct FileTokens {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    // Invariant: what is here is on the disk, and no number ever goes down.
    highest: Mutex<HashMap<String, Token>>,
    journal: Mutex<Journal>,
}

#[derive(Debug)]
struct Journal {
    path: PathBuf,
    file: File,
    /// Up to here it is sound.
    bytes: u64,
    lines: usize,
    /// A failed write could not be taken back: what is at the end of the file is not known.
    is_broken: bool,
    /// Held for as long as the folder is ours.
    _folder: File,
}

impl FileTokens {
    /// Opens the folder, and makes it if it is not there.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if it is in use by another process or cannot be written, [`Error::Fatal`] if it is damaged.
    pub fn open(folder: impl AsRef<Path>) -> Result<FileTokens, Error> {
        let folder = folder.as_ref();
        let cannot = |error: io::Error| {
            Error::unavailable(format!(
                "the tokens in {} cannot be opened ({error}): look at the folder, its rights and its disk",
                folder.display()
            ))
        };
        fs::create_dir_all(folder).map_err(cannot)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join("in-use"))
            .map_err(cannot)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::unavailable(format!(
                    "{} is in use by another process: stop that one, or choose another folder",
                    folder.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(cannot(error)),
        }
        let path = folder.join("tokens");
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(cannot)?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(cannot)?;
        let (highest, bytes, lines) = parse(&content).ok_or_else(|| {
            Error::Fatal(format_smolstr!(
                "{} is damaged, and with it the highest tokens are lost. Make sure that no old holder is at work any more, then \
                 remove it",
                path.display()
            ))
        })?;
        // A line that a power cut tore was never relied on.
        file.set_len(bytes).and_then(|()| file.sync_all()).map_err(cannot)?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(cannot)?;
        let journal = Journal { path, file, bytes, lines, is_broken: false, _folder: lock };
        Ok(FileTokens {
            shared: Arc::new(Shared { highest: Mutex::new(highest), journal: Mutex::new(journal) }),
        })
    }
}

impl Tokens for FileTokens {
    fn raise<'a>(&'a self, lock: &'a str, token: Token) -> Raising<'a> {
        Box::pin(async move {
            match self.shared.highest().get(lock) {
                Some(highest) if *highest >= token => return admit(token, *highest),
                _ => {}
            }
            let (shared, lock) = (Arc::clone(&self.shared), lock.to_owned());
            match tokio::task::spawn_blocking(move || shared.write(lock, token)).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    Err(Error::unavailable(format!("the token could not be kept ({error}): try again")))
                }
            }
        })
    }
}

impl Shared {
    fn highest(&self) -> MutexGuard<'_, HashMap<String, Token>> {
        self.highest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One at a time: the disk first, then the memory.
    fn write(&self, lock: String, token: Token) -> Result<(), Error> {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let count = {
            let highest = self.highest();
            match highest.get(&lock) {
                Some(known) if *known >= token => return admit(token, *known),
                None if highest.len() >= LOCKS_MAX => return Err(too_many()),
                _ => highest.len(),
            }
        };
        if journal.lines > 2 * count + OLD_LINES_MAX {
            let all = self.highest().clone();
            journal.rewrite(&all)?;
        }
        journal.append(&lock, token)?;
        self.highest().insert(lock, token);
        Ok(())
    }
}

impl Journal {
    fn append(&mut self, lock: &str, token: Token) -> Result<(), Error> {
        if self.is_broken {
            return Err(self.cannot(&"an earlier write failed and could not be taken back; start again"));
        }
        let line = render(lock, token);
        let written =
            self.file.write_all_at(line.as_bytes(), self.bytes).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            let taken_back = self.file.set_len(self.bytes).and_then(|()| self.file.sync_data());
            self.is_broken = taken_back.is_err();
            return Err(self.cannot(&error));
        }
        self.bytes += line.len() as u64;
        self.lines += 1;
        Ok(())
    }

    fn rewrite(&mut self, all: &HashMap<String, Token>) -> Result<(), Error> {
        let text: String = all.iter().map(|(lock, token)| render(lock, *token)).collect();
        let new = self.path.with_extension("new");
        let replaced = File::create(&new)
            .and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.sync_all()?;
                fs::rename(&new, &self.path)?;
                Ok(file)
            })
            .map_err(|error| self.cannot(&error))?;
        (self.file, self.bytes, self.lines) = (replaced, text.len() as u64, all.len());
        let folder = self.path.parent().unwrap_or(Path::new("."));
        if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
            // After a power cut the old file could be back, without what is added to the new one.
            self.is_broken = true;
            return Err(self.cannot(&error));
        }
        Ok(())
    }

    fn cannot(&self, error: &dyn std::fmt::Display) -> Error {
        Error::unavailable(format!(
            "{} cannot be written ({error}): nothing was passed on; look at the disk",
            self.path.display()
        ))
    }
}

fn render(lock: &str, token: Token) -> String {
    let rest = format!("{token} {}", encode(lock));
    format!("{:08x} {rest}\n", crc32fast::hash(rest.as_bytes()))
}

fn parse_line(line: &[u8]) -> Option<(String, Token)> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (sum, rest) = line.split_once(' ')?;
    (u32::from_str_radix(sum, 16).ok()? == crc32fast::hash(rest.as_bytes())).then_some(())?;
    let (token, lock) = rest.split_once(' ')?;
    Some((decode(lock)?, Token(token.parse().ok()?)))
}

/// The tokens, how many bytes and lines are sound; `None` if a line before the last is not.
fn parse(content: &[u8]) -> Option<(HashMap<String, Token>, u64, usize)> {
    let (mut highest, mut bytes, mut lines) = (HashMap::new(), 0, 0);
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        let Some((lock, token)) = parse_line(line) else {
            return (bytes + line.len() == content.len()).then_some((highest, bytes as u64, lines));
        };
        let known = highest.entry(lock).or_insert(token);
        *known = token.max(*known);
        bytes += line.len();
        lines += 1;
    }
    Some((highest, bytes as u64, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tokens_survive_and_a_torn_line_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = FileTokens::open(folder.path()).unwrap();
        for token in [3, 5, 5] {
            tokens.raise("a b", Token(token)).await.unwrap();
        }
        tokens.raise("ü", Token(1)).await.unwrap();
        assert_eq!(FileTokens::open(folder.path()).unwrap_err().code(), "unavailable");
        drop(tokens);
        let path = folder.path().join("tokens");
        let whole = fs::read(&path).unwrap();
        // Whatever is left of the line that was being written: the lines before it count.
        let last = whole.len() - whole.iter().rev().skip(1).position(|byte| *byte == b'\n').unwrap() - 1;
        for cut in last..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let tokens = FileTokens::open(folder.path()).unwrap();
            let stale = tokens.raise("a b", Token(4)).await.unwrap_err();
            assert_eq!(stale, Error::StaleToken { last_token: Token(5) });
            tokens.raise("ü", Token(2)).await.unwrap();
            drop(tokens);
            let tokens = FileTokens::open(folder.path()).unwrap();
            assert_eq!(tokens.raise("ü", Token(1)).await.unwrap_err().code(), "stale_token");
        }
    }

    #[test]
    fn damage_is_told_and_not_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let mut text = render("a", Token(3)) + &render("b", Token(4));
        text.replace_range(9..10, "9");
        fs::write(folder.path().join("tokens"), text).unwrap();
        assert_eq!(FileTokens::open(folder.path()).unwrap_err().code(), "fatal");
    }

    #[test]
    fn old_lines_are_cleared_away() {
        let folder = tempfile::tempdir().unwrap();
        let old: String = (1..=3 * OLD_LINES_MAX as u64).map(|token| render("a", Token(token))).collect();
        fs::write(folder.path().join("tokens"), old).unwrap();
        let tokens = FileTokens::open(folder.path()).unwrap();
        tokens.shared.write("b".to_owned(), Token(1)).unwrap();
        drop(tokens);
        assert_eq!(fs::read_to_string(folder.path().join("tokens")).unwrap().lines().count(), 2);
        let tokens = FileTokens::open(folder.path()).unwrap();
        assert_eq!(tokens.shared.write("a".to_owned(), Token(7)).unwrap_err().code(), "stale_token");
    }
}
