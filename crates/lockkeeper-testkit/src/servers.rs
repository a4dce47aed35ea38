//! The servers of an engine, whichever engine it is.

use std::any::Any;
use std::net::SocketAddr;
use std::time::Instant;

use crate::ServerError;

/// The running servers of one engine.
pub trait Servers: Any + Send {
    /// The addresses for clients.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// The parts of an engine URL before its first host, such as `user@`, and after its last one, such as `/database`.
    fn url_parts(&self) -> (&'static str, &'static str) {
        ("", "")
    }

    /// Ends all of them with SIGKILL (PostgreSQL with SIGQUIT, its immediate shutdown).
    fn kill(&mut self);

    /// Starts those that do not run, with their data, and waits until they are ready.
    ///
    /// # Errors
    ///
    /// If one does not start.
    fn restart(&mut self) -> Result<(), ServerError>;

    /// Kills the leader with SIGKILL and returns the time of the kill; `None` without a leader.
    fn kill_leader(&mut self) -> Option<Instant> {
        None
    }

    /// The ids of the running processes, where they are measured.
    fn process_ids(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Number of client requests by the servers' own counters.
    fn requests(&self) -> Option<u64>;

    /// The unit of [`requests`](Servers::requests), and where it is counted.
    fn request_unit(&self) -> &'static str;
}

/// How the servers of one engine are started.
#[derive(Debug)]
pub struct ServerKind {
    /// The name of the engine, as in the registry of the library.
    pub engine: &'static str,
    /// Starts a number of members. Servers that the testkit runs alone ignore the number.
    pub start: fn(usize) -> Result<Box<dyn Servers>, ServerError>,
    /// Name and version of the installed program.
    pub version: fn() -> Option<String>,
}
