//! Real servers, each on an address of its own and in a temporary folder, gone when their value is dropped whatever
//! happens. They can be killed, stopped, started again, and cut off from their clients.
//!
//! This crate knows nothing of the library: whatever tests the library can use it without a circle.

mod address;
pub mod cell;
mod clock;
pub mod consul;
mod error;
pub mod etcd;
pub mod http;
pub mod pgbouncer;
pub mod postgres;
mod process;
pub mod redis;
mod sockets;
pub mod wire;
pub mod zookeeper;

pub use address::free_address;
pub use clock::MovedClock;
pub use error::ServerError;
pub use process::{Process, Program, bound_to_us, find_program};
pub use rustix::process::Signal;
pub use sockets::connections_to;
