//! The gate of an HTTP service: a tower layer that refuses requests with a stale token, for axum and everything else that is
//! made of tower services. For a service that cannot be changed there is `lockkeeper proxy`, which is this layer in front of
//! another server.
//!
//! A request says under which lock it comes: `Lockkeeper-Fence: lock=orders/4472;token=42`, or the sequencer of the grant as
//! it is. A stale one is answered 412 with `{"error": {"code": "stale_token", ..}}`.
//!
//! ```
//! # async fn write() {}
//! # fn example() -> Result<(), lockkeeper::Error> {
//! use axum::{Router, routing::put};
//! use lockkeeper::gates::http::{FenceLayer, FileTokens};
//!
//! let tokens = FileTokens::open("/var/lib/ledger/fence")?; // kept over restarts
//! let service: Router = Router::new().route("/account/{id}", put(write)).layer(FenceLayer::new(tokens));
//! # Ok(()) }
//! ```
//!
//! # How the check and the write become one step
//!
//! A check that is over before the handler begins would leave a hole: the request of an old holder, checked in time, could
//! still be at work when that of the new holder has already written. So a request is *under way* from before its check until
//! its handler has answered, and one with a higher token, once its token is durable, waits until all with lower ones are no
//! longer under way. A body that an old holder does not finish sending is cut off, so that a holder which was stopped in the
//! middle of an upload does not keep the next one waiting. A handler that has begun goes on even if its client has gone.
//!
//! **What it does NOT protect from.** Ways to the resource around the layer. Several instances of a service that share one
//! store of tokens ([`PostgresTokens`], [`RedisTokens`]): each orders its own requests only, so hand the token on to the
//! write itself ([`Fences`]).

mod answer;
mod body;
mod header;
mod layer;
mod probe;
mod tokens;
mod turnstile;

pub use self::body::{CutOff, FencedBody};
pub use self::header::{Fences, HEADER, header_value};
pub use self::layer::{FenceLayer, FenceService, ResponseBody};
pub use self::probe::probe;
#[cfg(feature = "gate-postgres")]
pub use self::tokens::PostgresTokens;
#[cfg(feature = "gate-redis")]
pub use self::tokens::RedisTokens;
pub use self::tokens::{FileTokens, MemoryTokens, Raising, Tokens};

/// An error of any body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
