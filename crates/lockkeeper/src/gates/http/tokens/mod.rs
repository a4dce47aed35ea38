//! Stores of the highest tokens.

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

/// Future returned by [`Tokens::raise`].
pub type RaiseFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

/// Store of the highest token of each lock.
pub trait Tokens: Send + Sync + 'static {
    /// Stores the token if it is at least the highest so far, else fails with [`Error::StaleToken`]; atomically.
    ///
    /// `Ok` means that no lower token is admitted from now on, including after a restart if the store is durable.
    fn raise<'a>(&'a self, lock: &'a str, token: Token) -> RaiseFuture<'a>;
}

/// Maximum number of locks that a store in this process remembers. None may be forgotten, so their number is limited.
const LOCKS_MAX: usize = 1_000_000;

fn too_many_locks() -> Error {
    Error::Limit(format_smolstr!(
        "the store has tokens of {LOCKS_MAX} locks, its limit: reuse lock names, or store the tokens in a database"
    ))
}
