//! The lock table of Lockkeeper as a pure state machine.
//!
//! [`LockTable::apply`] takes one log entry and returns answers and effects. It uses no clock, no I/O, no randomness and
//! no hash order, so every node that applies the same entries has the same table, and tests can replay any history. The
//! safety rules that this crate enforces are marked in the code: S1, S2, S5 to S9, S11 and S13.
//!
//! ```
//! use lockkeeper_core::{Acquire, Batch, CellTime, Command, LockTable, Locks, Reply, SessionId, Token};
//!
//! let session = SessionId(1);
//! let mut table = LockTable::new();
//! let applied = table.apply(1, &Batch {
//!     now: CellTime(0),
//!     utc_ms: 0,
//!     commands: vec![
//!         Command::OpenSession { session, ttl_ms: 10_000, owner: "docs".into(), identity: None },
//!         Command::Acquire(Acquire::new(session, Locks::One("orders/4472".into()))),
//!     ],
//! })?;
//! let Ok(Reply::Granted(grant)) = &applied.answers[1] else { panic!("not granted") };
//! assert_eq!(grant.token, Token(1));
//! # Ok::<(), lockkeeper_core::TableError>(())
//! ```

pub mod access;
pub mod admission;
mod apply;
pub mod bounds;
pub mod command;
pub mod deadlock;
pub mod effect;
mod floor;
pub mod graph;
pub mod history;
pub mod id;
pub mod limiter;
pub mod limits;
mod lock;
#[doc(hidden)]
pub mod mutation;
pub mod percent;
mod queue;
pub mod quota;
pub mod reads;
pub mod refusal;
pub mod scope;
pub mod sequencer;
pub mod session;
pub mod shortage;
pub mod snapshot;
mod state_bytes;
pub mod table;
pub mod table_hash;
pub mod timekeeping;
pub mod top;
pub mod value;
pub mod version;
pub mod view;
mod weighed;
mod work;

pub use access::{Access, AccessChange, AccessToken, Right, Rights};
pub use command::{Acquire, Batch, Command, Fence, Locks, Mode, UnknownName, Wait, Waiting};
pub use deadlock::CycleStep;
pub use effect::{Answer, Applied, Effect, Freed, Grant, Reply, SessionEnd};
pub use id::{CellTime, LockName, RequestId, SessionId, Ticket, Token};
pub use limiter::TakeRate;
pub use quota::{Quota, Usage};
pub use refusal::Refusal;
pub use scope::Policy;
pub use sequencer::Sequencer;
pub use shortage::{Endings, Prospect};
pub use snapshot::{Restore, SnapshotError};
pub use table::{LockTable, TableError};
pub use version::CellVersion;
pub use view::{Counts, HolderView, LeaderView, LockView, WaiterView};
