//! Distributed locks with end-to-end fencing.
//!
//! ```no_run
//! use lockkeeper::prelude::*;
//!
//! # struct Ledger;
//! # impl Ledger { async fn write(&self, _row: &str, _token: lockkeeper::Token) -> Result<(), lockkeeper::Error> { Ok(()) } }
//! # async fn example(ledger: Ledger) -> Result<(), lockkeeper::Error> {
//! let keeper = Keeper::connect("lockkeeper://127.0.0.1:7420").await?;
//! let guard = keeper.lock("orders/4472").ttl(10.secs()).wait(5.secs()).acquire().await?;
//! ledger.write("row", guard.token()).await?; // the gate refuses a stale token
//! guard.release().await?;
//!
//! keeper
//!     .lock("report")
//!     .run(|lease| async move {
//!         lease.check()?; // before each step that matters
//!         Ok::<_, lockkeeper::Error>(())
//!     })
//!     .await??; // the work is dropped before the lease can pass on
//! # Ok(()) }
//! ```
//!
//! # What a lock can and cannot promise
//!
//! A holder can be paused for longer than its lease, wake up, and write. No lock service can stop that write: only
//! the resource can, by refusing a token lower than the highest it has seen. So every guard of an engine that can
//! fence has a [`Guard::token`]. An engine that cannot returns a [`Guard`]`<`[`Unfenced`]`>` without that method, so code
//! that needs a token does not compile with it.
//!
//! # The states of a guard
//!
//! - **held**: the session was renewed in time; no other client can hold the lock.
//! - **jeopardy**: the last acknowledged renewal was sent a TTL (less drift) ago. Another client may acquire the lock at
//!   any moment. [`Guard::remaining`] is zero, [`Guard::check`] fails, and, unless the lock was configured with
//!   [`Lock::grace`], [`Guard::lost`] resolves and [`Lock::run`] drops the work. If a later renewal succeeds, the guard
//!   is held again.
//! - **lost**: the session is known to be lost, the lock was released by force, or the grace period has passed.
//!   A lost guard stays lost.
//!
//! The client decides all of this by a monotonic clock that includes time spent in suspend (`CLOCK_BOOTTIME`), never by a
//! wall clock and never by the network.
//!
//! # Features
//!
//! - `cell` (default): the client of a Lockkeeper cell.
//! - `admin`: administration of a cell ([`Keeper::admin`]).
//! - `embedded`: a lock table inside this process.
//! - `redis`, `redlock`, `etcd`, `zookeeper`, `consul`, `postgres`: locks on servers that you already run. Their
//!   guarantees are listed in [`Capabilities`] and in `docs/engines.md`.
//! - `gate-postgres`, `gate-sqlx`, `gate-redis`, `gate-file`, `gate-object-store`, `gate-http`: [`gates`], which check the
//!   token at the resource.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "admin")]
pub mod admin;
mod backoff;
mod capabilities;
mod clock;
mod deadline;
mod duration;
mod election;
mod engines;
mod error;
mod events;
mod fencing;
pub mod gates;
mod grant;
mod guard;
mod history;
mod keeper;
mod limiter;
mod lock;
mod lock_all;
mod mode;
mod once;
mod optimistic;
mod options;
#[cfg(feature = "_protocols")]
#[doc(hidden)]
pub mod protocols;
mod run;
mod scope;
mod trace;
mod ttl;
mod url;
mod value;
mod view;

#[cfg(feature = "admin")]
pub use admin::Admin;
pub use capabilities::{Capabilities, Class, ClockAuthority, Fairness, Finding, LossDetection, TokenKind};
pub use duration::Durations;
pub use election::{Election, Leader, Leadership, Observer};
pub use engines::registry::EngineInfo;
pub use error::{Error, Loss};
pub use events::{Event, Events};
pub use fencing::{Fenced, Fencing, Unfenced};
pub use guard::{Guard, GuardChanges, GuardState};
pub use history::{
    Audit, AuditAct, AuditActKind, Blocked, Contended, Hour, LeaderChange, LockEvent, LockEventKind,
    LongHeld, Spread, Top,
};
pub use keeper::Keeper;
pub use limiter::Limiter;
pub use lock::Lock;
pub use lock_all::LockAll;
pub use lockkeeper_api::Code;
pub use lockkeeper_core::Token;
pub use mode::Mode;
pub use once::Once;
pub use options::KeeperBuilder;
pub use run::Lease;
pub use scope::{Policy, Scope};
pub use ttl::Ttl;
pub use value::{Value, ValueHandle};
pub use view::{
    Disagreement, ForcedRelease, Holder, LockPage, LockState, Member, Status, TableHash, TokenCheck, Waiter,
};

/// The most common imports: `use lockkeeper::prelude::*`.
pub mod prelude {
    pub use crate::{Durations as _, Error, Guard, Keeper, Lease, Lock, Mode};
}
