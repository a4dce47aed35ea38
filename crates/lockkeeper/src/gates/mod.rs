//! Gates check the fencing token at the resource.
//!
//! A holder can be paused for longer than its lease, wake up, and write. Only the resource can stop that write: it keeps the
//! highest token it has seen and refuses a lower one, in the same atomic step as the write. That is a gate. Lower tokens
//! fail; equal ones pass, because they are the same holder's next write.
//!
//! | resource | gate | feature |
//! |---|---|---|
//! | data in this process | [`Gate`] | always included |
//! | PostgreSQL, tokio-postgres | `postgres::Fence` | `gate-postgres` |
//! | PostgreSQL, sqlx | `sqlx::Fence` | `gate-sqlx` |
//! | Redis | `redis::RedisGate` | `gate-redis` |
//! | a file | `file::FileGate` | `gate-file` |
//! | an object store (S3 and the like) | `object::ObjectGate` | `gate-object-store` |
//! | an HTTP service | `http::FenceLayer`, or `lockkeeper proxy` in front of it | `gate-http` |
//! | a value of the cell | [`Keeper::value`](crate::Keeper::value) with `fence` | always included |
//!
//! Each has a `probe` that proves on your own resource that a newer token passes and a stale one does not. `docs/gates.md`
//! explains which gate to use, and what no gate protects from.
//!
//! # Read under the token too
//!
//! A write often depends on an earlier read. Until the resource has seen your token, a stale holder may write between your
//! read and your write. So pass the token with the read too: every gate supports that (`Fence::check` before the read,
//! `RedisGate::get`, `FileGate::read`, `ObjectGate::update`, the header with a GET).

#[cfg(any(feature = "gate-postgres", feature = "gate-sqlx"))]
mod fence_table;
#[cfg(feature = "gate-file")]
#[cfg_attr(docsrs, doc(cfg(feature = "gate-file")))]
pub mod file;
#[cfg(feature = "gate-http")]
#[cfg_attr(docsrs, doc(cfg(feature = "gate-http")))]
pub mod http;
mod local;
#[cfg(feature = "gate-object-store")]
#[cfg_attr(docsrs, doc(cfg(feature = "gate-object-store")))]
pub mod object;
#[cfg(feature = "gate-postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "gate-postgres")))]
pub mod postgres;
#[cfg(feature = "gate-file")]
mod record;
#[cfg(feature = "gate-redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "gate-redis")))]
pub mod redis;
#[cfg(feature = "gate-sqlx")]
#[cfg_attr(docsrs, doc(cfg(feature = "gate-sqlx")))]
pub mod sqlx;

use lockkeeper_core::Token;
use smol_str::format_smolstr;

pub use self::local::{Gate, Pass};
use crate::error::Error;

/// Prefix of the names that probes use, in case one leaves something behind.
pub const PROBE_PREFIX: &str = "lockkeeper-probe/";

/// The rule of all gates: a token below the highest is stale.
pub(crate) fn admit(token: Token, highest: Token) -> Result<(), Error> {
    if token < highest { Err(Error::StaleToken { last_token: highest }) } else { Ok(()) }
}

/// The error of a failed probe.
pub(crate) fn not_enforced(what: &str) -> Error {
    Error::Fatal(format_smolstr!(
        "{what} let a stale token through: do not rely on this gate until you know why"
    ))
}

/// A unique name for a probe.
#[cfg(any(
    feature = "gate-file",
    feature = "gate-http",
    feature = "gate-postgres",
    feature = "gate-redis",
    feature = "gate-sqlx"
))]
pub(crate) fn probe_name() -> String {
    let number = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
    format!("{PROBE_PREFIX}{number:016x}")
}

/// Compiles the code in the guide, and runs what can run.
#[cfg(all(
    doctest,
    feature = "gate-file",
    feature = "gate-http",
    feature = "gate-object-store",
    feature = "gate-postgres",
    feature = "gate-redis",
    feature = "gate-sqlx"
))]
#[doc = include_str!("../../../../docs/gates.md")]
mod guide {}
