//! The stream of a client: many operations in a frame, answers in any order, pushed grants and events.

pub mod connection;
mod costs;
pub(crate) mod decode_limits;
mod operation;
pub mod stream;
