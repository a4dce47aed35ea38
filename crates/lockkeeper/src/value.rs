//! Small values that are kept beside the locks, and written only under a token that is not stale.

use lockkeeper_core::Token;

use crate::engines::Fence;
use crate::error::Error;
use crate::fencing::{Fenced, Fencing};
use crate::guard::Guard;
use crate::keeper::Keeper;
use crate::run::Lease;

/// A value as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Value {
    /// Its key.
    pub key: String,
    /// Its content.
    pub bytes: Vec<u8>,
    /// Rises with each write.
    pub version: u64,
    /// The highest token that wrote it, if one did.
    pub token: Option<Token>,
}

/// A value by its key, and the conditions under which it may be written.
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

    /// Write only while this guard's token is the last one granted for its lock. For a guard of several locks, the first
    /// lock stands for all.
    pub fn fence(self, guard: &Guard<Fenced>) -> Self {
        let lock = guard.lock_name().to_owned();
        self.fence_with(lock, guard.token())
    }

    /// The same from within [`Lock::run`](crate::Lock::run).
    pub fn fence_lease(self, lease: &Lease<Fenced>) -> Self {
        let lock = lease.lock_name().to_owned();
        self.fence_with(lock, lease.token())
    }

    /// The same with a lock and a token that came from elsewhere.
    pub fn fence_with(mut self, lock: impl Into<String>, token: Token) -> Self {
        self.fence = Some(Fence { lock: lock.into(), token });
        self
    }

    /// Write only if the value still has this version; 0 means that it must not exist yet.
    pub fn if_version(mut self, version: u64) -> Self {
        self.if_version = Some(version);
        self
    }

    /// Reads it; `None` if there is no such value.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn get(&self) -> Result<Option<Value>, Error> {
        self.keeper.shared.engine.get_value(&self.key).await
    }

    /// Writes it, and answers its new version.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`] if the fence is stale, [`Error::VersionMismatch`] if it has another version,
    /// [`Error::Unknown`] if the answer was lost: a write is never repeated behind your back.
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

    /// Removes it.
    ///
    /// # Errors
    ///
    /// As [`put`](ValueHandle::put).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have removed the value.
    pub async fn delete(&self) -> Result<(), Error> {
        self.keeper.shared.engine.delete_value(&self.key, self.fence.clone(), self.if_version).await
    }
}
