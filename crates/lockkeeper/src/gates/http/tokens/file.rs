//! Tokens in a local folder.
//!
//! One file, `tokens`, gets a line for each token that is higher than the one before:
//! `<checksum> <token> <lock, percent-encoded>`. It is read at the start, and rewritten when most of its lines are obsolete.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_core::Token;
use smol_str::format_smolstr;

use super::{LOCKS_MAX, RaiseFuture, Tokens, too_many_locks};
use crate::error::Error;
use crate::gates::admit;
use crate::gates::http::header::{decode, encode};

/// The number of obsolete lines that may stay in the file.
const OBSOLETE_LINES_MAX: usize = 10_000;

/// Token store in a local folder, durable across restarts and power losses: a higher token is on disk before its request
/// proceeds. Only one process at a time can open the folder.
#[derive(Debug, Clone)]
pub struct FileTokens {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    // Invariant: every entry is on disk, and no token ever decreases.
    highest: Mutex<HashMap<String, Token>>,
    journal: Mutex<Journal>,
}

#[derive(Debug)]
struct Journal {
    path: PathBuf,
    file: File,
    /// The length of the valid part of the file.
    bytes: u64,
    lines: usize,
    /// A failed write could not be undone: the end of the file is unknown.
    is_broken: bool,
    /// The lock on the folder, held while it is open.
    _folder: File,
}

impl FileTokens {
    /// Opens the folder; creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if it is in use by another process or cannot be written, [`Error::Fatal`] if it is damaged.
    pub fn open(folder: impl AsRef<Path>) -> Result<FileTokens, Error> {
        let folder = folder.as_ref();
        let failed = |error: io::Error| {
            Error::unavailable(format!(
                "failed to open the tokens in {}: {error}; check the folder, its permissions and its disk",
                folder.display()
            ))
        };
        fs::create_dir_all(folder).map_err(failed)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join("in-use"))
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::unavailable(format!(
                    "{} is in use by another process: stop it, or choose another folder",
                    folder.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let path = folder.join("tokens");
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(failed)?;
        let (highest, bytes, lines) = parse(&content).ok_or_else(|| {
            Error::Fatal(format_smolstr!(
                "{} is damaged and the highest tokens are lost. Make sure that no old holder is still running, then remove the \
                 file",
                path.display()
            ))
        })?;
        // A line torn by a power loss was never acknowledged.
        file.set_len(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        let journal = Journal { path, file, bytes, lines, is_broken: false, _folder: lock };
        Ok(FileTokens {
            shared: Arc::new(Shared { highest: Mutex::new(highest), journal: Mutex::new(journal) }),
        })
    }
}

impl Tokens for FileTokens {
    fn raise<'a>(&'a self, lock: &'a str, token: Token) -> RaiseFuture<'a> {
        Box::pin(async move {
            match self.shared.highest().get(lock) {
                Some(highest) if *highest >= token => return admit(token, *highest),
                _ => {}
            }
            let (shared, lock) = (Arc::clone(&self.shared), lock.to_owned());
            match tokio::task::spawn_blocking(move || shared.write(lock, token)).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    Err(Error::unavailable(format!("failed to store the token ({error}): try again")))
                }
            }
        })
    }
}

impl Shared {
    fn highest(&self) -> MutexGuard<'_, HashMap<String, Token>> {
        self.highest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a token to disk, then to memory; one at a time.
    fn write(&self, lock: String, token: Token) -> Result<(), Error> {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let count = {
            let highest = self.highest();
            match highest.get(&lock) {
                Some(known) if *known >= token => return admit(token, *known),
                None if highest.len() >= LOCKS_MAX => return Err(too_many_locks()),
                _ => highest.len(),
            }
        };
        if journal.lines > 2 * count + OBSOLETE_LINES_MAX {
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
            return Err(
                self.write_error(&"an earlier write failed and could not be undone; restart the process")
            );
        }
        let line = render(lock, token);
        let written =
            self.file.write_all_at(line.as_bytes(), self.bytes).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            let undone = self.file.set_len(self.bytes).and_then(|()| self.file.sync_data());
            self.is_broken = undone.is_err();
            return Err(self.write_error(&error));
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
            .map_err(|error| self.write_error(&error))?;
        (self.file, self.bytes, self.lines) = (replaced, text.len() as u64, all.len());
        let folder = self.path.parent().unwrap_or(Path::new("."));
        if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
            // After a power loss the old file could reappear, without the lines added to the new one.
            self.is_broken = true;
            return Err(self.write_error(&error));
        }
        Ok(())
    }

    fn write_error(&self, error: &dyn std::fmt::Display) -> Error {
        Error::unavailable(format!(
            "failed to write {}: {error}; the request was not passed on; check the disk",
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

/// The tokens and the numbers of valid bytes and lines; `None` if a line before the last is invalid.
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
    async fn tokens_survive_a_torn_last_line() {
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
        // Wherever the last line is torn, the lines before it stay valid.
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
    fn damaged_file_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let mut text = render("a", Token(3)) + &render("b", Token(4));
        text.replace_range(9..10, "9");
        fs::write(folder.path().join("tokens"), text).unwrap();
        assert_eq!(FileTokens::open(folder.path()).unwrap_err().code(), "fatal");
    }

    #[test]
    fn obsolete_lines_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let old: String =
            (1..=3 * OBSOLETE_LINES_MAX as u64).map(|token| render("a", Token(token))).collect();
        fs::write(folder.path().join("tokens"), old).unwrap();
        let tokens = FileTokens::open(folder.path()).unwrap();
        tokens.shared.write("b".to_owned(), Token(1)).unwrap();
        drop(tokens);
        assert_eq!(fs::read_to_string(folder.path().join("tokens")).unwrap().lines().count(), 2);
        let tokens = FileTokens::open(folder.path()).unwrap();
        assert_eq!(tokens.shared.write("a".to_owned(), Token(7)).unwrap_err().code(), "stale_token");
    }
}
