//! The gate of an object store, through the crate `object_store`: S3 and compatible stores, Google, Azure, a folder, memory.
//!
//! A write reads the object with its ETag (or version), checks its token, and puts the new object on the condition that the
//! ETag is unchanged. If a holder is paused between the check and the put, the store itself refuses the put.
//!
//! **Where the token is.** Before the data, as a line of [`FRAME_BYTES`] bytes. Metadata would not be sufficient: the ETag of
//! S3 is a checksum of the content, so an object that gets its old content back gets its old ETag back, and a stale put would
//! pass:
//!
//! ```text
//!  A (41)  reads "x" with ETag 9dd4 ─── pause ────────────────────────────────────── puts "y" if ETag is 9dd4 ✔
//!  B (42)              puts "z" ── later puts "x" again: the same content, ETag 9dd4
//! ```
//!
//! Where ETags or versions are never reused (Azure, Google, memory), [`ObjectGate::raw`] stores the data unchanged and the
//! token in the metadata. [`ObjectGate::probe`] checks whether a store supports the chosen form.
//!
//! **What it does NOT protect from.** Writers that do not use the gate, and deletes: a deleted object loses its token. Put an
//! empty object instead.

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

/// Length of the line that [`ObjectGate::new`] puts before the data.
pub const FRAME_BYTES: usize = 70;

/// Maximum number of attempts for one write. Each failed attempt means that another write succeeded.
const TRIES_MAX: usize = 1_000;

// Letters only: Azure allows nothing else.
const TOKEN_ATTRIBUTE: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("lockkeepertoken"));
const WRITE_ATTRIBUTE: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("lockkeeperwrite"));

/// Gate of the objects in an object store.
#[derive(Debug, Clone)]
pub struct ObjectGate {
    backend: Backend,
}

#[derive(Debug, Clone)]
enum Backend {
    Store { store: Arc<dyn ObjectStore>, is_raw: bool },
    Folder(PathBuf),
}

/// Object, as returned by [`ObjectGate::get`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Object {
    /// The content.
    pub bytes: Bytes,
    /// The token of the last write; 0 if it had none.
    pub token: Token,
}

/// The object before a write.
struct Found {
    object: Object,
    /// The ID of the last write, which identifies a write of ours whose answer was lost.
    write: u64,
    attributes: Attributes,
    version: UpdateVersion,
}

impl ObjectGate {
    /// Creates a gate for any store with conditional puts (`PutMode::Update`). The token is stored before the data.
    pub fn new(store: Arc<dyn ObjectStore>) -> ObjectGate {
        ObjectGate { backend: Backend::Store { store, is_raw: false } }
    }

    /// Creates a gate that leaves the data unchanged and stores the token in the metadata.
    ///
    /// Only for stores that never reuse an ETag or version, even for equal content. Not for S3.
    pub fn raw(store: Arc<dyn ObjectStore>) -> ObjectGate {
        ObjectGate { backend: Backend::Store { store, is_raw: true } }
    }

    /// Creates a gate for a local folder, in which each object is a plain file behind a [`FileGate`].
    ///
    /// (`LocalFileSystem` of the crate `object_store` has no conditional puts.)
    pub fn local(folder: impl Into<PathBuf>) -> ObjectGate {
        ObjectGate { backend: Backend::Folder(folder.into()) }
    }

    /// Reads an object without a token; `None` if it does not exist.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn get(&self, path: &Path) -> Result<Option<Object>, Error> {
        match &self.backend {
            Backend::Store { store, is_raw } => {
                Ok(find(store, *is_raw, path, true).await?.map(|found| found.object))
            }
            Backend::Folder(folder) => {
                let gate = file(folder, path)?;
                let token = gate.highest().await?;
                Ok(gate.read(token).await?.map(|bytes| Object { bytes: bytes.into(), token }))
            }
        }
    }

    /// Writes an object.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`] if the object was written under a higher token. [`Error::Unsupported`] if the store has no
    /// conditional puts.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have written the object.
    pub async fn put(&self, path: &Path, bytes: impl Into<Bytes>, token: Token) -> Result<(), Error> {
        let bytes = bytes.into();
        self.change(path, token, false, move |_| bytes.clone()).await
    }

    /// Updates an object: reads it, applies `change` and writes the result; retries if another writer was faster.
    ///
    /// `change` may be called several times. It gets the content, or `None` if the object does not exist.
    ///
    /// # Errors
    ///
    /// As [`put`](ObjectGate::put).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have written the object.
    pub async fn update(
        &self,
        path: &Path,
        token: Token,
        change: impl FnMut(Option<Bytes>) -> Bytes + Send + 'static,
    ) -> Result<(), Error> {
        self.change(path, token, true, change).await
    }

    /// Writes the result of `change`, which gets the old content only if `with_content` is set.
    async fn change(
        &self,
        path: &Path,
        token: Token,
        with_content: bool,
        mut change: impl FnMut(Option<Bytes>) -> Bytes + Send + 'static,
    ) -> Result<(), Error> {
        let (store, is_raw) = match &self.backend {
            Backend::Store { store, is_raw } => (store, *is_raw),
            Backend::Folder(folder) => {
                let gate = file(folder, path)?;
                return gate.update(token, move |content| change(content.map(Bytes::from)).to_vec()).await;
            }
        };
        let write =
            getrandom::u64().map_err(|error| Error::Fatal(format_smolstr!("no random number: {error}")))?;
        for attempt in 0..TRIES_MAX {
            let found = match find(store, is_raw, path, with_content).await {
                // An earlier put may have succeeded although it was answered as failed.
                Err(Error::Unavailable(text)) if attempt > 0 => return Err(Error::Unknown(text)),
                found => found?,
            };
            if let Some(found) = &found {
                // Our earlier put succeeded although it was answered as failed: its answer was lost and the client retried it.
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
                Err(error) => return Err(to_error(error)),
            }
        }
        Err(Error::unavailable(format!(
            "too many concurrent writes of {path}: nothing was written, try again"
        )))
    }

    /// Proves, below `prefix` in this store, that a newer token passes and a stale one does not, that the store enforces the
    /// condition of a put, and that its ETags are suitable. It deletes what it writes.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if the proof fails.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may leave a small object behind.
    pub async fn probe(&self, prefix: &Path) -> Result<(), Error> {
        let path = probe_name().split('/').fold(prefix.clone(), |path, part| path.join(part));
        match &self.backend {
            Backend::Folder(folder) => file(folder, prefix)?.probe().await,
            Backend::Store { store, is_raw } => {
                let outcome = self.try_stale_puts(store, *is_raw, &path).await;
                match store.delete(&path).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => outcome,
                    Err(error) => outcome.and(Err(to_error(error))),
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
        let read =
            || async { find(store, is_raw, path, true).await?.ok_or_else(|| not_enforced("this store")) };
        self.put(path, "same", Token(1)).await?;
        let seen_by_old_holder = read().await?;
        self.put(path, "same", Token(2)).await?;
        if !matches!(self.put(path, "stale", Token(1)).await, Err(Error::StaleToken { .. })) {
            return Err(not_enforced("this store"));
        }
        // The put of a holder that was paused between its check and its put.
        let (payload, options) = prepare("stale".into(), Some(seen_by_old_holder), is_raw, Token(1), 0);
        match store.put_opts(path, payload, options).await {
            Err(object_store::Error::Precondition { .. }) => {}
            Err(error) => return Err(to_error(error)),
            Ok(_) if is_raw => {
                return Err(Error::Fatal(
                    "this store reuses the ETag for equal content, or ignores conditions, so a stale put can pass: use \
                     ObjectGate::new instead of ObjectGate::raw"
                        .into(),
                ));
            }
            Ok(_) => return Err(not_enforced("this store ignores the condition of a put; it")),
        }
        if read().await?.object.token != Token(2) {
            return Err(not_enforced("this store"));
        }
        Ok(())
    }
}

/// The gate of an object's file. Creates its parent folders.
fn file(folder: &std::path::Path, path: &Path) -> Result<FileGate, Error> {
    let file = folder.join(path.as_ref());
    if let Some(parent) = file.parent() {
        std::fs::create_dir_all(parent).map_err(|error| super::record::io_error("create", parent, &error))?;
    }
    Ok(FileGate::new(if path.as_ref().is_empty() { folder.join("probe") } else { file }))
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
        // An empty object has no first bytes, and not every store supports ranges.
        answer = store.get_opts(path, GetOptions::default()).await;
    }
    let found = match answer {
        Ok(found) => found,
        Err(object_store::Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(to_read_error(error)),
    };
    let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
    if version.e_tag.is_none() && version.version.is_none() {
        return Err(unsupported("it returns neither an ETag nor a version"));
    }
    let attributes = found.attributes.clone();
    let bytes =
        if is_raw && !with_content { Bytes::new() } else { found.bytes().await.map_err(to_read_error)? };
    let (token, write, bytes) = if is_raw {
        let number = |name| attributes.get(&name).and_then(|text| text.parse().ok()).unwrap_or_default();
        (Token(number(TOKEN_ATTRIBUTE)), number(WRITE_ATTRIBUTE), bytes)
    } else {
        // An object written without the gate has no such line.
        unframe(&bytes).unwrap_or((Token(0), 0, bytes))
    };
    Ok(Some(Found { object: Object { bytes, token }, write, attributes, version }))
}

/// The payload and options of a put, on the condition that the object is still the one that was found.
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
        "this store has no conditional puts ({why}), so it cannot fence: for a folder use ObjectGate::local, for S3 enable \
         conditional puts"
    ))
}

/// Converts an error of a read, which cannot have changed anything.
fn to_read_error(error: object_store::Error) -> Error {
    match to_error(error) {
        Error::Unknown(text) => Error::Unavailable(text),
        other => other,
    }
}

/// Converts an error of the store, with the next step.
fn to_error(error: object_store::Error) -> Error {
    match &error {
        object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. } => {
            unsupported(&error.to_string())
        }
        object_store::Error::Unauthenticated { .. } => Error::Unauthenticated(format_smolstr!(
            "authentication with the store failed ({error}): check the credentials"
        )),
        object_store::Error::PermissionDenied { .. } => Error::Forbidden(format_smolstr!(
            "permission denied by the store ({error}): allow the user to get and put objects there"
        )),
        object_store::Error::InvalidPath { .. } | object_store::Error::UnknownConfigurationKey { .. } => {
            Error::invalid(error.to_string())
        }
        _ => Error::Unknown(format_smolstr!(
            "the request to the store failed ({error}): check that the store is reachable, and what is stored there"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_has_a_fixed_length() {
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
