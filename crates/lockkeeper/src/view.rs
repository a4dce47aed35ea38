//! What people see: who holds a lock, who waits, how the cell is. The types are those of the HTTP contract.

pub use lockkeeper_api::lock::{Holder, LockPage, LockState, Waiter};
pub use lockkeeper_api::status::{Disagreement, Member, Status, TableHash};
pub use lockkeeper_api::token::TokenCheck;

/// What became of a lock that was freed by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForcedRelease {
    /// How many holders there were.
    pub holders: u32,
    /// The lock's last token, now above that of every former holder.
    pub last_token: u64,
}
