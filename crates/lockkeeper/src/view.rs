//! Views of locks and of the cell. The types are those of the HTTP contract.

pub use lockkeeper_api::lock::{Holder, LockPage, LockState, Waiter};
pub use lockkeeper_api::status::{Disagreement, Member, Status, TableHash};
pub use lockkeeper_api::token::TokenCheck;

/// Result of a forced release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForcedRelease {
    /// The number of former holders.
    pub holders: u32,
    /// The lock's last token, which is now above that of every former holder.
    pub last_token: u64,
}
