//! How a server is tuned.

/// What the settings of a server are chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tuning {
    /// Short timeouts and little memory, so that tests of sessions and fail-over take seconds. ZooKeeper does not sync
    /// its log.
    Tests,
    /// The defaults of the server's own package, at which it is durable: for measurements.
    Defaults,
}
