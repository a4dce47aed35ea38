//! The API contract of Lockkeeper: the messages and services of `lockkeeper.v1`, the JSON types of the HTTP interface, the
//! error codes with their statuses, and all conversions between them and the lock table.
//!
//! Each noun has a file with its JSON types and conversions. Every protocol converts its input to a [`Request`], and an
//! [`Answer`] to its output.
//!
//! The code in `generated/` is checked in; `tests/generated.rs` regenerates it from `proto/` and compares.

pub mod access;
pub mod acquire;
mod answer;
mod code;
pub mod election;
mod error;
pub mod graph;
pub mod history;
pub mod lock;
mod ms;
pub mod operation;
pub mod rate;
mod request;
pub mod session;
pub mod status;
pub mod token;
pub mod top;
pub mod value;
mod wire;

pub use answer::ReplyShape;
pub use code::{Code, GrpcStatus, UnknownCode};
pub use error::{Error, ErrorBody, metadata};
pub use operation::Operation;
pub use request::{
    Answer, Call, Done, Limit, Request, RequiredRight, WrongAnswer, election_lock, session_id,
};

/// Messages and services for clients.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    include!("generated/lockkeeper.v1.rs");
}

/// Messages and service between the members of a cell.
#[allow(missing_docs, clippy::all)]
pub mod peer {
    include!("generated/lockkeeper.peer.v1.rs");
}

pub use v1::FILE_DESCRIPTOR_SET;
