//! The gate of an object store: S3 and what speaks like it, Google, Azure, a folder, memory; through the crate `object_store`.
//!
//! An object is read with its ETag (or version), its token is checked, and it is put back on the condition that it is still
//! the one that was read. Whoever was paused between the check and the put is refused by the store itself.
//!
//! **Where the token is.** In front of the data, as a line of [`FRAME_BYTES`] bytes. It could not be in the metadata alone: the
//! ETag of S3 is a checksum of the content, so an object that gets its old content back gets its old ETag back, and a stale put
//! would pass:
//!
//! ```text
//!  A (41)  reads "x" with ETag 9dd4 ─── pause ────────────────────────────────────── puts "y" if ETag is 9dd4 ✔
//!  B (42)              puts "z" ── later puts "x" again: the same content, ETag 9dd4
//! ```
//!
//! Where ETags or versions never come again (Azure, Google, memory), [`ObjectGate::raw`] keeps the data as it is and the token in
//! the metadata. [`ObjectGate::probe`] finds out whether a store is fit for what was chosen.
//!
//! **What it does NOT protect from.** Writers that do not use the gate, and deletes: an object that is deleted forgets its token.
//! Put an empty object instead.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use lockkeeper_core::Token;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    UpdateVersion,
};
use smol_str::format_smolstr;

use super::file::FileGate;
use super::{admit, not_enforced, probe_name};
use crate::backoff;
use crate::error::Error;

/// How long the line is that [`ObjectGate::new`] puts before the data.
pub const FRAME_BYTES: usize = 70;

/// Tries of one write, if others write at the same time. Each failed one means that another one succeeded.
const TRIES_MAX: usize = 1_000;

// Letters alone: Azure takes nothing else.
const TOKEN_ATTRIBUTE: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("lockkeepertoken"));
const WRITE_ATTRIBUTE: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("lockkeeperwrite"));

/// The gate.
#[derive(Debug, Clone)]
pub struct ObjectGate {
    place: Place,
}

#[derive(Debug, Clone)]
enum Place {
    Store { store: Arc<dyn ObjectStore>, is_raw: bool },
    Folder(PathBuf),
}

/// An object as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Object {
    /// Its content.
    pub bytes: Bytes,
    /// The token under which it was written; 0 if it was written without one.
    pub token: Token,
}

/// What is there before a write.
struct Found {
    object: Object,
    /// Which write made it, so that a write whose answer was lost is known again.
    write: u64,
    attributes: Attributes,
    version: UpdateVersion,
}

impl ObjectGate {
    /// For any store that can put on a condition (`PutMode::Update`), with the token in front of the data.
    pub fn new(store: Arc<dyn ObjectStore>) -> ObjectGate {
        ObjectGate { place: Place::Store { store, is_raw: false } }
    }

    /// The data as it is and the token in its metadata: for stores whose ETag or version never comes again, also if the
    /// content does. Not for S3.
    pub fn raw(store: Arc<dyn ObjectStore>) -> ObjectGate {
        ObjectGate { place: Place::Store { store, is_raw: true } }
    }

    /// For a folder of this machine. The crate's own `LocalFileSystem` cannot put on a condition; here each object is a plain
    /// file behind a [`FileGate`].
    pub fn local(folder: impl Into<PathBuf>) -> ObjectGate {
        ObjectGate { place: Place::Folder(folder.into()) }
    }

    /// Reads an object without showing a token; `None` if there is no such object.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn get(&self, path: &Path) -> Result<Option<Object>, Error> {
        match &self.place {
            Place::Store { store, is_raw } => {
                Ok(find(store, *is_raw, path, true).await?.map(|found| found.object))
            }
            Place::Folder(folder) => {
                let gate = file(folder, path)?;
                let token = gate.highest().await?;
                Ok(gate.read(token).await?.map(|bytes| Object { bytes: bytes.into(), token }))
            }
        }
    }

    /// Puts an object.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`] if it was put under a higher token before. [`Error::Unsupported`] if the store cannot put on a
    /// condition.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have put it.
    pub async fn put(&self, path: &Path, bytes: impl Into<Bytes>, token: Token) -> Result<(), Error> {
        let bytes = bytes.into();
        self.change(path, token, false, move |_| bytes.clone()).await
    }

    /// Changes an object: it is read, changed and put, and once more if somebody else was faster. The function may be called
    /// several times; it gets the content, or `None` if there is no such object.
    ///
    /// # Errors
    ///
    /// As [`put`](ObjectGate::put).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have put it.
    pub async fn update(
        &self,
        path: &Path,
        token: Token,
        change: impl FnMut(Option<Bytes>) -> Bytes + Send + 'static,
    ) -> Result<(), Error> {
        self.change(path, token, true, change).await
    }

    /// Not everybody needs the content of what was there before.
    async fn change(
        &self,
        path: &Path,
        token: Token,
        with_content: bool,
        mut change: impl FnMut(Option<Bytes>) -> Bytes + Send + 'static,
    ) -> Result<(), Error> {
        let (store, is_raw) = match &self.place {
            Place::Store { store, is_raw } => (store, *is_raw),
            Place::Folder(folder) => {
                let gate = file(folder, path)?;
                return gate.update(token, move |content| change(content.map(Bytes::from)).to_vec()).await;
            }
        };
        let write =
            getrandom::u64().map_err(|error| Error::Fatal(format_smolstr!("no random number: {error}")))?;
        for attempt in 0..TRIES_MAX {
            let found = match find(store, is_raw, path, with_content).await {
                // A put before this may have been done although it was answered as failed.
                Err(Error::Unavailable(text)) if attempt > 0 => return Err(Error::Unknown(text)),
                found => found?,
            };
            if let Some(found) = &found {
                // The put before this was answered as failed, and was done all the same: the answer was lost, and the client
                // repeated it.
                if found.write == write {
                    return Ok(());
                }
                admit(token, found.object.token)?;
            }
            let bytes = change(found.as_ref().map(|found| found.object.bytes.clone()));
            let (payload, options) = prepare(bytes, found, is_raw, token, write);
            match store.put_opts(path, payload, options).await {
                Ok(_) => return Ok(()),
                Err(
                    object_store::Error::Precondition { .. }
                    | object_store::Error::AlreadyExists { .. }
                    | object_store::Error::NotFound { .. },
                ) => tokio::time::sleep(backoff::pause(attempt.min(4)) / 8).await,
                Err(error) => return Err(told(error)),
            }
        }
        Err(Error::unavailable(format!("others write {path} all the time: nothing was written, try again")))
    }

    /// Proves below `prefix` in this store that a newer token passes and a stale one does not, that the store really looks at the
    /// condition of a put, and that its ETags are fit for it. What it writes it deletes.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if it does not hold.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may leave a small object behind.
    pub async fn probe(&self, prefix: &Path) -> Result<(), Error> {
        let path = probe_name().split('/').fold(prefix.clone(), |path, part| path.join(part));
        match &self.place {
            Place::Folder(folder) => file(folder, prefix)?.probe().await,
            Place::Store { store, is_raw } => {
                let outcome = self.try_stale_puts(store, *is_raw, &path).await;
                match store.delete(&path).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => outcome,
                    Err(error) => outcome.and(Err(told(error))),
                }
            }
        }
    }

    async fn try_stale_puts(
        &self,
        store: &Arc<dyn ObjectStore>,
        is_raw: bool,
        path: &Path,
    ) -> Result<(), Error> {
        let looked =
            || async { find(store, is_raw, path, true).await?.ok_or_else(|| not_enforced("this store")) };
        self.put(path, "same", Token(1)).await?;
        let seen_by_old_holder = looked().await?;
        self.put(path, "same", Token(2)).await?;
        if !matches!(self.put(path, "stale", Token(1)).await, Err(Error::StaleToken { .. })) {
            return Err(not_enforced("this store"));
        }
        // What a holder does that was paused between its check and its put.
        let (payload, options) = prepare("stale".into(), Some(seen_by_old_holder), is_raw, Token(1), 0);
        match store.put_opts(path, payload, options).await {
            Err(object_store::Error::Precondition { .. }) => {}
            Err(error) => return Err(told(error)),
            Ok(_) if is_raw => {
                return Err(Error::Fatal(
                    "this store gives the same content the same ETag, or does not look at conditions, so a stale put can pass: \
                     use ObjectGate::new instead of ObjectGate::raw"
                        .into(),
                ));
            }
            Ok(_) => return Err(not_enforced("this store does not look at the condition of a put; it")),
        }
        if looked().await?.object.token != Token(2) {
            return Err(not_enforced("this store"));
        }
        Ok(())
    }
}

/// The file of an object; the folders above it are made.
fn file(folder: &std::path::Path, path: &Path) -> Result<FileGate, Error> {
    let place = folder.join(path.as_ref());
    if let Some(above) = place.parent() {
        std::fs::create_dir_all(above).map_err(|error| super::record::cannot("made", above, &error))?;
    }
    Ok(FileGate::new(if path.as_ref().is_empty() { folder.join("probe") } else { place }))
}

async fn find(
    store: &Arc<dyn ObjectStore>,
    is_raw: bool,
    path: &Path,
    with_content: bool,
) -> Result<Option<Found>, Error> {
    let options = match (with_content, is_raw) {
        (true, _) => GetOptions::default(),
        (false, true) => GetOptions { head: true, ..GetOptions::default() },
        (false, false) => GetOptions { range: Some((0..FRAME_BYTES as u64).into()), ..GetOptions::default() },
    };
    let mut answer = store.get_opts(path, options).await;
    if !with_content && !matches!(answer, Ok(_) | Err(object_store::Error::NotFound { .. })) {
        // An empty object has no first bytes, and not every store can give a part.
        answer = store.get_opts(path, GetOptions::default()).await;
    }
    let found = match answer {
        Ok(found) => found,
        Err(object_store::Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(not_read(error)),
    };
    let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
    if version.e_tag.is_none() && version.version.is_none() {
        return Err(unsupported("it gives neither an ETag nor a version"));
    }
    let attributes = found.attributes.clone();
    let bytes = if is_raw && !with_content { Bytes::new() } else { found.bytes().await.map_err(not_read)? };
    let (token, write, bytes) = if is_raw {
        let number = |name| attributes.get(&name).and_then(|text| text.parse().ok()).unwrap_or_default();
        (Token(number(TOKEN_ATTRIBUTE)), number(WRITE_ATTRIBUTE), bytes)
    } else {
        // What was there before the gate has no line.
        unframe(&bytes).unwrap_or((Token(0), 0, bytes))
    };
    Ok(Some(Found { object: Object { bytes, token }, write, attributes, version }))
}

/// What to put, on the condition that what was found is still there.
fn prepare(
    bytes: Bytes,
    found: Option<Found>,
    is_raw: bool,
    token: Token,
    write: u64,
) -> (PutPayload, PutOptions) {
    let (mode, mut attributes) = match found {
        Some(found) => (PutMode::Update(found.version), found.attributes),
        None => (PutMode::Create, Attributes::new()),
    };
    let payload = if is_raw {
        attributes.insert(TOKEN_ATTRIBUTE, token.to_string().into());
        attributes.insert(WRITE_ATTRIBUTE, write.to_string().into());
        PutPayload::from_bytes(bytes)
    } else {
        PutPayload::from_iter([Bytes::from(frame(token, write)), bytes])
    };
    (payload, PutOptions { mode, attributes, ..PutOptions::default() })
}

fn frame(token: Token, write: u64) -> String {
    format!("lockkeeper-fence v1 token={:020} write={write:016x}\n", token.0)
}

fn unframe(bytes: &Bytes) -> Option<(Token, u64, Bytes)> {
    let line = std::str::from_utf8(bytes.get(..FRAME_BYTES)?).ok()?;
    let (token, write) =
        line.strip_prefix("lockkeeper-fence v1 token=")?.strip_suffix('\n')?.split_once(" write=")?;
    let write = u64::from_str_radix(write, 16).ok()?;
    Some((Token(token.parse().ok()?), write, bytes.slice(FRAME_BYTES..)))
}

fn unsupported(why: &str) -> Error {
    Error::unsupported(format!(
        "this store cannot put on a condition ({why}), so it cannot fence: for a folder use ObjectGate::local, for S3 turn on \
         conditional puts"
    ))
}

/// The same for a read, after which nothing can have happened.
fn not_read(error: object_store::Error) -> Error {
    match told(error) {
        Error::Unknown(text) => Error::Unavailable(text),
        told => told,
    }
}

/// An error of the store in plain words, with the next step.
fn told(error: object_store::Error) -> Error {
    match &error {
        object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. } => {
            unsupported(&error.to_string())
        }
        object_store::Error::Unauthenticated { .. } => Error::Unauthenticated(format_smolstr!(
            "the store does not know who asks ({error}): look at the credentials"
        )),
        object_store::Error::PermissionDenied { .. } => Error::Forbidden(format_smolstr!(
            "the store does not allow it ({error}): the user needs to get and put objects there"
        )),
        object_store::Error::InvalidPath { .. } | object_store::Error::UnknownConfigurationKey { .. } => {
            Error::invalid(error.to_string())
        }
        _ => Error::Unknown(format_smolstr!(
            "the store did not answer as it should ({error}): look whether it can be reached, and what is there"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_before_the_data_has_a_fixed_length() {
        for (token, write) in [(0, 0), (42, 7), (u64::MAX, u64::MAX)] {
            let line = frame(Token(token), write);
            assert_eq!(line.len(), FRAME_BYTES);
            let whole = Bytes::from(line + "data");
            assert_eq!(unframe(&whole), Some((Token(token), write, Bytes::from("data"))));
        }
        assert_eq!(
            unframe(&Bytes::from("something else that is longer than a line of seventy bytes, by far")),
            None
        );
    }
}
