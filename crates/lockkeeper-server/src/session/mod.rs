//! One stream for each client: many operations in a frame, answers in any order, grants and events pushed.

pub mod connection;
mod operation;
pub mod stream;
