//! The gate of an HTTP service: a tower layer that refuses requests with a stale token, for axum and other tower services.
//!
//! For a service that you cannot change, run `lockkeeper proxy`, which puts this layer in front of another server.
//!
//! A request names its lock and token in the header `Lockkeeper-Fence: lock=orders/4472;token=42`, or sends the sequencer of
//! the grant in it. A stale request is answered 412 with `{"error": {"code": "stale_token", ..}}`.
//!
//! ```
//! # async fn write() {}
//! # fn example() -> Result<(), lockkeeper::Error> {
//! use axum::{Router, routing::put};
//! use lockkeeper::gates::http::{FenceLayer, FileTokens};
//!
//! let tokens = FileTokens::open("/var/lib/ledger/fence")?; // survives restarts
//! let service: Router = Router::new().route("/account/{id}", put(write)).layer(FenceLayer::new(tokens));
//! # Ok(()) }
//! ```
//!
//! # How check and write are atomic
//!
//! A check that ends before the handler starts would leave a gap: a request of the old holder, checked in time, could still
//! be running after a request of the new holder has written. So a request is *in flight* from before its check until its
//! handler has answered. A request with a higher token, once that token is durable, waits until no request with a lower one
//! is in flight. A body that an old holder does not finish sending is cut off, so a holder stopped in the middle of an upload
//! does not block the next one. A handler that has started continues even if its client disconnects.
//!
//! **What it does NOT protect from.** Access to the resource that bypasses the layer. Several instances of a service that
//! share one token store ([`PostgresTokens`], [`RedisTokens`]): each orders only its own requests, so pass the token on to
//! the write itself ([`Fences`]).

mod answer;
mod body;
mod header;
mod in_flight;
mod layer;
mod probe;
mod tokens;

pub use self::body::{CutOff, FencedBody};
pub use self::header::{Fences, HEADER, header_value};
pub use self::layer::{FenceLayer, FenceService, ResponseBody};
pub use self::probe::probe;
#[cfg(feature = "gate-postgres")]
pub use self::tokens::PostgresTokens;
#[cfg(feature = "gate-redis")]
pub use self::tokens::RedisTokens;
pub use self::tokens::{FileTokens, MemoryTokens, RaiseFuture, Tokens};

/// Error of a request body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
