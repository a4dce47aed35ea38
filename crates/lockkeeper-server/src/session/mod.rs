//! One stream for each client: many operations in a frame, answers in any order, grants and events pushed.

pub mod connection;
mod costs;
pub(crate) mod decode_limits;
mod operation;
pub mod stream;
