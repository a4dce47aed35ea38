//! Small values beside the locks, with a version and the highest token that wrote them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Token;

/// A stored value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredValue {
    /// Its content.
    pub bytes: Arc<[u8]>,
    /// Rises by one with every write. A value that was removed and written again goes on above all
    /// versions that were ever removed, so that an old version never comes back.
    pub version: u64,
    /// The highest token that wrote it.
    pub token: Token,
}
