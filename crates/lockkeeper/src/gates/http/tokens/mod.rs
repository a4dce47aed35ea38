//! Where the highest tokens are kept.

mod file;
mod memory;
#[cfg(feature = "gate-postgres")]
mod postgres;
#[cfg(feature = "gate-redis")]
mod redis;

use std::future::Future;
use std::pin::Pin;

use lockkeeper_core::Token;
use smol_str::format_smolstr;

pub use self::file::FileTokens;
pub use self::memory::MemoryTokens;
#[cfg(feature = "gate-postgres")]
pub use self::postgres::PostgresTokens;
#[cfg(feature = "gate-redis")]
pub use self::redis::RedisTokens;
use crate::error::Error;

/// What [`Tokens::raise`] returns.
pub type Raising<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

/// A memory of the highest token of each lock.
pub trait Tokens: Send + Sync + 'static {
    /// Remembers the token if it is at least as high as the highest so far, else answers [`Error::StaleToken`]; in one
    /// step. `Ok` means that no lower one is let in from now on, also after a restart if the memory survives one.
    fn raise<'a>(&'a self, lock: &'a str, token: Token) -> Raising<'a>;
}

/// Locks that a memory in this process remembers. None may be forgotten, so there has to be an end.
const LOCKS_MAX: usize = 1_000_000;

fn too_many() -> Error {
    Error::Limit(format_smolstr!(
        "tokens of {LOCKS_MAX} locks are remembered, and none may be forgotten: use names that come again, or Tokens in a \
         database"
    ))
}
