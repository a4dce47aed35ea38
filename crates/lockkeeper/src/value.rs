//! Small values stored beside the locks, with fenced writes.

use lockkeeper_core::Token;

use crate::engines::Fence;
use crate::error::Error;
use crate::fencing::{Fenced, Fencing};
use crate::guard::Guard;
use crate::keeper::Keeper;
use crate::run::Lease;

/// A stored value, as returned by [`ValueHandle::get`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Value {
    /// The key.
    pub key: String,
    /// The content.
    pub bytes: Vec<u8>,
    /// The version, which increases with each write.
    pub version: u64,
    /// The highest token of a fenced write, if there was one.
    pub token: Option<Token>,
}

/// Handle to a value, with the conditions for writing it.
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is read or written"]
pub struct ValueHandle<F: Fencing = Fenced> {
    keeper: Keeper<F>,
    key: String,
    fence: Option<Fence>,
    if_version: Option<u64>,
}

impl<F: Fencing> ValueHandle<F> {
    pub(crate) fn new(keeper: Keeper<F>, key: String) -> ValueHandle<F> {
        ValueHandle { keeper, key, fence: None, if_version: None }
    }

    /// Writes only while this guard's token is the last one granted for its lock.
    ///
    /// If the guard holds several locks, only the first one is checked.
    pub fn fence(self, guard: &Guard<Fenced>) -> Self {
        let lock = guard.lock_name().to_owned();
        self.fence_with(lock, guard.token())
    }

    /// Writes only while this lease's token is the last one granted for its lock; see [`Lock::run`](crate::Lock::run).
    pub fn fence_lease(self, lease: &Lease<Fenced>) -> Self {
        let lock = lease.lock_name().to_owned();
        self.fence_with(lock, lease.token())
    }

    /// Writes only while this token is the last one granted for this lock.
    pub fn fence_with(mut self, lock: impl Into<String>, token: Token) -> Self {
        self.fence = Some(Fence { lock: lock.into(), token });
        self
    }

    /// Writes only if the value still has this version; 0 means that it must not exist yet.
    pub fn if_version(mut self, version: u64) -> Self {
        self.if_version = Some(version);
        self
    }

    /// Reads the value; `None` if it does not exist.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn get(&self) -> Result<Option<Value>, Error> {
        self.keeper.shared.engine.get_value(&self.key).await
    }

    /// Writes the value and returns its new version.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`] if the fence is stale, [`Error::VersionMismatch`] if the value has another version,
    /// [`Error::Unknown`] if the answer was lost: the keeper never retries a write that may have happened.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have written the value.
    pub async fn put(&self, bytes: impl Into<Vec<u8>>) -> Result<u64, Error> {
        self.keeper
            .shared
            .engine
            .put_value(&self.key, bytes.into(), self.fence.clone(), self.if_version)
            .await
    }

    /// Deletes the value.
    ///
    /// # Errors
    ///
    /// As [`put`](ValueHandle::put).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have deleted the value.
    pub async fn delete(&self) -> Result<(), Error> {
        self.keeper.shared.engine.delete_value(&self.key, self.fence.clone(), self.if_version).await
    }
}
