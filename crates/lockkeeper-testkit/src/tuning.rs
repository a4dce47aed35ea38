//! Tuning of servers.

/// The purpose of a server's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tuning {
    /// Short timeouts and little memory, so that tests of sessions and fail-over take seconds. ZooKeeper does not sync
    /// its log.
    Tests,
    /// The defaults of the server's own package, at which it is durable: for measurements.
    Defaults,
}
