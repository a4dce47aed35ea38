//! The real servers of the suite. The crate `lockkeeper-testkit` starts and stops them.

pub(crate) mod cell;
pub(crate) mod consul;
pub(crate) mod embedded;
pub(crate) mod etcd;
pub(crate) mod pgbouncer;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod redlock;
pub(crate) mod zookeeper;

use std::net::SocketAddr;
use std::time::Duration;

/// Calls a macro with a list of all engines with servers: `name: type of its site`.
#[allow(unused_macros, reason = "the tests of gates start single servers")]
macro_rules! each_engine {
    ($each:ident) => {
        $each! {
            cell: $crate::servers::cell::Cell,
            redis: $crate::servers::redis::Redis,
            redlock: $crate::servers::redlock::Redlock,
            etcd: $crate::servers::etcd::Etcd,
            zookeeper: $crate::servers::zookeeper::Zookeeper,
            consul: $crate::servers::consul::Consul,
            postgres: $crate::servers::postgres::Postgres,
        }
    };
}
#[allow(unused_imports, reason = "the tests of gates start single servers")]
pub(crate) use each_engine;

/// The servers of an engine.
pub(crate) trait Site: Sized + Send + 'static {
    /// A short time to live for this engine.
    const TTL: Duration = Duration::from_secs(1);

    /// Whether a repeated request ID is answered without a round trip.
    const ANSWERS_REPEATS_LOCALLY: bool = true;

    /// The limit of requests to the servers for a release and the grant that follows, for any number of waiters.
    const REQUESTS_PER_RELEASE_MAX: u64 = u64::MAX;

    /// The expected findings of the doctor: there is one server where a cluster is recommended.
    #[allow(dead_code, reason = "used by the tests of the CLI")]
    const FINDINGS: &'static [&'static str] = &[];

    /// Starts the servers and waits until they answer.
    fn start() -> Self;

    /// Starts the servers with counting of requests, if this needs a setting.
    fn start_counting() -> Self {
        Self::start()
    }

    /// The number of client requests that the servers have processed.
    fn requests(&self) -> u64 {
        0
    }

    /// The addresses of the servers.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// The URL with other addresses, such as those of proxies.
    fn url_at(&self, addresses: &[SocketAddr]) -> String;

    fn url(&self) -> String {
        self.url_at(&self.addresses())
    }

    /// Kills the servers with SIGKILL.
    fn kill(&mut self);

    /// Starts the servers again, with their data.
    fn restart(&mut self);

    /// The number of connections to the servers, without that of this query; `None` without servers.
    fn connections(&self) -> Option<usize> {
        None
    }

    /// Entries, sessions and locks that are on the servers, but would not be on new ones.
    fn left_behind(&self) -> Vec<String> {
        Vec::new()
    }
}

/// An address that no server listens on.
pub(crate) fn free_address() -> SocketAddr {
    lockkeeper_testkit::free_address(7420)
}
