//! The settings of a keeper and their builder.

#[cfg(feature = "cell")]
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "cell")]
use lockkeeper_net::tls::KeyPair;

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
    #[cfg(feature = "cell")]
    pub(crate) credentials: Credentials,
}

/// The credentials for a cell that were set on the builder.
#[cfg(feature = "cell")]
#[derive(Debug, Clone, Default)]
pub(crate) struct Credentials {
    ca: Option<PathBuf>,
    own: Option<KeyPair>,
    token_file: Option<PathBuf>,
    token: Option<Secret>,
}

/// A string that `Debug` does not reveal.
#[cfg(feature = "cell")]
#[derive(Clone)]
struct Secret(String);

#[cfg(feature = "cell")]
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

#[cfg(feature = "cell")]
impl Credentials {
    /// Reads the files. Credentials that were not set on the builder come from the environment.
    pub(crate) fn load(&self) -> Result<lockkeeper_net::credentials::Credentials, Error> {
        use lockkeeper_net::credentials::{self, Credentials as Loaded};
        let failed = |error: lockkeeper_net::tls::TlsError| Error::invalid(error.to_string());
        let mut loaded = Loaded::default();
        match (&self.ca, &self.own) {
            (Some(ca), own) => loaded = loaded.tls(ca, own.clone()).map_err(failed)?,
            (None, Some(_)) => {
                return Err(Error::invalid(
                    "a client certificate requires TLS: set the certificate authority of the nodes with tls_ca(..)",
                ));
            }
            (None, None) => {}
        }
        if let Some(file) = &self.token_file {
            loaded = loaded.token_file(file);
        } else if let Some(Secret(token)) = &self.token {
            loaded = loaded.token(token);
        }
        loaded
            .or_environment(|name| match (name, &self.token) {
                // A token set on the builder takes precedence over the environment.
                (credentials::TOKEN | credentials::TOKEN_FILE, Some(_)) => None,
                (name, _) => std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from),
            })
            .map_err(failed)
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            owner: default_owner(),
            ttl: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            // As in Chubby.
            grace: Duration::from_secs(45),
            accepts_volatile_tokens: false,
            #[cfg(feature = "cell")]
            credentials: Credentials::default(),
        }
    }
}

/// Builder of a [`Keeper`], created by [`Keeper::builder`].
#[derive(Debug, Clone, Default)]
#[must_use = "a builder does nothing until it connects"]
pub struct KeeperBuilder {
    options: Options,
}

impl KeeperBuilder {
    /// Sets the owner, which is shown to people who look at a lock. Default: host, process ID, program and the version of
    /// this library, such as `web-3/4711/billing/lockkeeper-0.1.0`.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.options.owner = owner.into();
        self
    }

    /// Sets the default time to live of locks. Default: 10 seconds.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Sets how long `connect` tries to reach a server. Default: 5 seconds.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.options.connect_timeout = timeout;
        self
    }

    /// Sets how long a request may remain unanswered, over all retries. Default: 5 seconds.
    ///
    /// The time that an acquire waits in a queue does not count. An acquire that waits without a limit has no timeout.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.options.request_timeout = timeout;
        self
    }

    /// Sets how long guards stay in jeopardy after their deadline before they are lost. Default: 45 seconds.
    ///
    /// The work still stops at the deadline, unless the lock is configured with [`Lock::grace`](crate::Lock::grace).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// Accepts volatile tokens (Redis) as fencing tokens.
    ///
    /// If Redis loses its data, it can issue a number that a resource has already seen, or a lower one: then gates refuse
    /// new holders or accept a stale one. No effect on other engines.
    pub fn accept_volatile_tokens(mut self) -> Self {
        self.options.accepts_volatile_tokens = true;
        self
    }

    /// Enables TLS to a cell and trusts nodes whose certificates are signed by this authority (PEM).
    ///
    /// Default: the environment variable `LOCKKEEPER_CA`; without it, connections are not encrypted.
    #[cfg(feature = "cell")]
    pub fn tls_ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.options.credentials.ca = Some(file.into());
        self
    }

    /// Presents this client certificate (PEM, with its key) to the nodes of a cell. Its name is the client's identity.
    ///
    /// Default: the environment variables `LOCKKEEPER_CERT` and `LOCKKEEPER_KEY`. Renewed files are read without a restart.
    #[cfg(feature = "cell")]
    pub fn tls_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.options.credentials.own = Some(KeyPair { certificate: certificate.into(), key: key.into() });
        self
    }

    /// Presents this access token to a cell.
    ///
    /// Default: the environment variable `LOCKKEEPER_AUTH_TOKEN`, or the file named by `LOCKKEEPER_AUTH_TOKEN_FILE`.
    #[cfg(feature = "cell")]
    pub fn access_token(mut self, token: impl Into<String>) -> Self {
        self.options.credentials.token = Some(Secret(token.into()));
        self
    }

    /// Presents the access token in this file, which is read again for each connection.
    #[cfg(feature = "cell")]
    pub fn access_token_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.options.credentials.token_file = Some(file.into());
        self
    }

    /// Creates the administrator's client of a cell, without a keeper. It connects with the first call.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the URL is not that of a cell, [`Error::Invalid`] if the URL or the credentials are
    /// invalid.
    #[cfg(feature = "admin")]
    pub fn admin(self, url: &str) -> Result<crate::Admin, Error> {
        let (engine, url) = crate::url::EngineUrl::parse(url)?;
        if engine.name != crate::engines::cell::CAPABILITIES.engine {
            return Err(Error::unsupported(format!(
                "the engine {} has no members, access rules or snapshots to administer: name a cell, \
                 lockkeeper://host:port",
                engine.name
            )));
        }
        let credentials = self.options.credentials.load()?;
        let nodes = crate::admin::Nodes::new(url.hosts()?, credentials, self.options.connect_timeout);
        Ok(crate::Admin::new(nodes))
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
        let engine = engines::registry::open(url, &self.options).await?;
        Ok(Keeper::new(engine, self.options))
    }
}

/// The default of [`KeeperBuilder::owner`].
fn default_owner() -> String {
    let name = rustix::system::uname();
    let host = name.nodename().to_string_lossy().into_owned();
    let program = std::env::current_exe()
        .ok()
        .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
        .unwrap_or_else(|| "unknown".to_owned());
    let version = env!("CARGO_PKG_VERSION");
    let mut owner = format!("{host}/{}/{program}/lockkeeper-{version}", std::process::id());
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
    fn default_owner_contains_host_process_program_and_version() {
        let owner = default_owner();
        let parts: Vec<&str> = owner.split('/').collect();
        assert_eq!(parts.len(), 4, "{owner}");
        assert_eq!(parts[1], std::process::id().to_string());
        assert!(parts[2].starts_with("lockkeeper"), "{owner}");
        assert_eq!(parts[3], concat!("lockkeeper-", env!("CARGO_PKG_VERSION")));
    }
}
