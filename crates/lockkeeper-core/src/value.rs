//! Small values in the lock table, with a version and the highest token that wrote them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Token;

/// A stored value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredValue {
    /// Its content.
    pub bytes: Arc<[u8]>,
    /// Rises by one with every write. A value that is deleted and created again continues above all versions that were ever
    /// deleted, so that no version is reused.
    pub version: u64,
    /// The highest token that wrote it.
    pub token: Token,
}
