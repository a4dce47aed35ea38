//! Real servers, as the suite wants them: how they are started and ended is in the crate `lockkeeper-testkit`.

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

/// An engine with its servers.
pub(crate) trait Site: Sized + Send + 'static {
    /// A time to live that is short for it.
    const TTL: Duration = Duration::from_secs(1);

    /// A request id that is known already is answered without a round trip.
    const KNOWS_REQUESTS: bool = true;

    /// The most requests that its servers have to work on for a release and the grant that follows, however many wait.
    const REQUESTS_FOR_A_RELEASE: u64 = u64::MAX;

    /// Starts the servers and waits until they answer.
    fn start() -> Self;

    /// The same with servers that count requests, if they do not by themselves.
    fn start_counting() -> Self {
        Self::start()
    }

    /// How many requests of clients they have worked on so far.
    fn requests(&self) -> u64 {
        0
    }

    /// Where they listen.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// The URL if they listened elsewhere.
    fn url_at(&self, addresses: &[SocketAddr]) -> String;

    fn url(&self) -> String {
        self.url_at(&self.addresses())
    }

    /// Ends the servers with SIGKILL.
    fn kill(&mut self);

    /// Starts them again, with what they kept on disk.
    fn restart(&mut self);

    /// How many connections there are to the servers, but for that of this question; `None` without servers.
    fn connections(&self) -> Option<usize> {
        None
    }

    /// What is left on the servers that was not there at first, if they can tell.
    fn left_behind(&self) -> Vec<String> {
        Vec::new()
    }
}

/// An address that nobody listens at now.
pub(crate) fn free_address() -> SocketAddr {
    lockkeeper_testkit::free_address(7420)
}
