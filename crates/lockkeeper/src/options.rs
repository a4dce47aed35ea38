//! How a keeper behaves, and the builder that sets it.

use std::time::Duration;

use crate::engines;
use crate::error::Error;
use crate::fencing::{Fenced, Unfenced};
use crate::keeper::Keeper;

/// The settings of a keeper.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) owner: String,
    pub(crate) ttl: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) grace: Duration,
    pub(crate) accepts_volatile_tokens: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            owner: default_owner(),
            ttl: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            // Chubby's.
            grace: Duration::from_secs(45),
            accepts_volatile_tokens: false,
        }
    }
}

/// Sets up a keeper: `Keeper::builder()`.
#[derive(Debug, Clone, Default)]
#[must_use = "a builder does nothing until it connects"]
pub struct KeeperBuilder {
    options: Options,
}

impl KeeperBuilder {
    /// Who it is, for people who ask who holds a lock. Default: host, process id and program.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.options.owner = owner.into();
        self
    }

    /// The time to live of locks that do not name their own. Default: 10 seconds.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// How long `connect` looks for a node that answers. Default: 5 seconds.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.options.connect_timeout = timeout;
        self
    }

    /// How long a request may stay without an answer, over all retries, beyond the time that it is meant to wait in a
    /// queue. Default: 5 seconds. An acquire that waits without a limit has no limit here either.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.options.request_timeout = timeout;
        self
    }

    /// How long guards stay in jeopardy after their deadline before they are lost. Default: 45 seconds.
    /// This alone lets no work go on in jeopardy: see [`Lock::grace`](crate::Lock::grace).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// Take tokens that do not survive the loss of the server (Redis) for a fence all the same. If Redis loses its
    /// data, it can give a number again that a resource has already seen, or a lower one: then new holders are refused
    /// by their gates, or a stale one passes. With other engines this changes nothing.
    pub fn accept_volatile_tokens(mut self) -> Self {
        self.options.accepts_volatile_tokens = true;
        self
    }

    /// Connects to an engine that can fence; see [`Keeper::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call leaves nothing behind.
    pub async fn connect(self, url: &str) -> Result<Keeper<Fenced>, Error> {
        self.connect_unfenced(url).await?.fenced()
    }

    /// Connects to any engine; see [`Keeper::connect_unfenced`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call leaves nothing behind.
    pub async fn connect_unfenced(self, url: &str) -> Result<Keeper<Unfenced>, Error> {
        let engine = engines::open(url, &self.options).await?;
        Ok(Keeper::new(engine, self.options))
    }
}

/// Host, process and program, such as `web-3/4711/billing`.
fn default_owner() -> String {
    let name = rustix::system::uname();
    let host = name.nodename().to_string_lossy().into_owned();
    let program = std::env::current_exe()
        .ok()
        .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
        .unwrap_or_else(|| "unknown".to_owned());
    let mut owner = format!("{host}/{}/{program}", std::process::id());
    let mut end = owner.len().min(lockkeeper_core::limits::OWNER_BYTES_MAX);
    while !owner.is_char_boundary(end) {
        end -= 1;
    }
    owner.truncate(end);
    owner
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_names_host_process_and_program() {
        let owner = default_owner();
        let parts: Vec<&str> = owner.split('/').collect();
        assert_eq!(parts.len(), 3, "{owner}");
        assert_eq!(parts[1], std::process::id().to_string());
        assert!(parts[2].starts_with("lockkeeper"), "{owner}");
    }
}
