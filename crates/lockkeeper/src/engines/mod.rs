//! The engines behind the common API, listed in [`ENGINES`]. Each is a folder with the same file names: `mod.rs` (what it
//! does and does NOT promise), `session.rs`, `lock.rs`, `wait.rs`, `token.rs`. Engines on other vendors' servers share
//! `runtime/`.
//!
//! To add an engine, add its folder, a module and an entry here, a feature in `Cargo.toml`, its servers in the crate
//! `lockkeeper-testkit` and in `tests/conformance/servers/`, and its section in `docs/engines.md`.

#[cfg(any(feature = "cell", feature = "embedded"))]
pub(crate) mod cell;
#[cfg(feature = "consul")]
pub(crate) mod consul;
#[cfg(feature = "embedded")]
pub(crate) mod embedded;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redlock")]
pub(crate) mod redlock;
pub(crate) mod registry;
#[cfg(feature = "_servers")]
pub(crate) mod runtime;
#[cfg(feature = "_servers")]
pub(crate) mod weak_spots;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Locks, Policy, Token};
use smol_str::SmolStr;

use self::registry::{EngineInfo, UrlForm, built};
use crate::capabilities::{Capabilities, Finding};
use crate::clock::Moment;
use crate::election::Leader;
use crate::error::Error;
use crate::events::Events;
use crate::grant::Grant;
use crate::history::{Audit, Blocked, LockEvent, Top};
use crate::limiter::Taken;
use crate::mode::Mode;
use crate::options::Options;
use crate::value::Value;
use crate::view::{ForcedRelease, LockPage, LockState, Status, TokenCheck};

/// All engines, in the order of the documentation.
pub(crate) static ENGINES: &[&EngineInfo] =
    &[&CELL, &EMBEDDED, &REDIS, &REDLOCK, &ETCD, &ZOOKEEPER, &CONSUL, &POSTGRES];

pub(crate) static CELL: EngineInfo = EngineInfo {
    name: "cell",
    prefixes: &["lockkeeper://"],
    default_port: Some(7420),
    example: "lockkeeper://host:port,...",
    form: UrlForm::Hosts,
    built: built!("cell", cell, |url, options| cell::connect(url.hosts()?, options)),
};

pub(crate) static EMBEDDED: EngineInfo = EngineInfo {
    name: "embedded",
    prefixes: &["embedded:"],
    default_port: None,
    example: "embedded: or embedded:/path",
    form: UrlForm::Path,
    built: built!("embedded", embedded, |url, options| embedded::open(url.path()?, options)),
};

pub(crate) static REDIS: EngineInfo = EngineInfo {
    name: "redis",
    prefixes: &["redis://", "rediss://"],
    default_port: Some(6379),
    example: "redis://user:password@host:port/db",
    form: UrlForm::Server,
    built: built!("redis", redis),
};

pub(crate) static REDLOCK: EngineInfo = EngineInfo {
    name: "redlock",
    prefixes: &["redlock://"],
    default_port: Some(6379),
    example: "redlock://host:port,host:port,host:port",
    form: UrlForm::Server,
    built: built!("redlock", redlock),
};

pub(crate) static ETCD: EngineInfo = EngineInfo {
    name: "etcd",
    prefixes: &["etcd://"],
    default_port: Some(2379),
    example: "etcd://host:port,...",
    form: UrlForm::Server,
    built: built!("etcd", etcd),
};

pub(crate) static ZOOKEEPER: EngineInfo = EngineInfo {
    name: "zookeeper",
    prefixes: &["zookeeper://"],
    default_port: Some(2181),
    example: "zookeeper://host:port,.../chroot",
    form: UrlForm::Server,
    built: built!("zookeeper", zookeeper),
};

pub(crate) static CONSUL: EngineInfo = EngineInfo {
    name: "consul",
    prefixes: &["consul://"],
    default_port: Some(8500),
    example: "consul://host:port",
    form: UrlForm::Server,
    built: built!("consul", consul),
};

pub(crate) static POSTGRES: EngineInfo = EngineInfo {
    name: "postgres",
    prefixes: &["postgres://", "postgresql://"],
    default_port: Some(5432),
    example: "postgres://user:password@host:port/database",
    form: UrlForm::Server,
    built: built!("postgres", postgres),
};

/// Future of an engine's answer.
pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// An engine, which decides who holds a lock. Operations that not every engine supports have a default, which refuses them.
pub(crate) trait Engine: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// What the engine supports and guarantees.
    fn capabilities(&self) -> &'static Capabilities;

    /// Acquires locks. Dropping the future leaves no waiter and no holder behind.
    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<'_, Arc<Grant>>;

    /// Releases a grant. Dropping the future does not: the guard then calls
    /// [`release_in_background`](Engine::release_in_background).
    fn release<'a>(&'a self, grant: &'a Grant) -> Answer<'a, ()>;

    /// Releases a grant in the background; never blocks. A second call has no effect.
    fn release_in_background(&self, grant: &Grant);

    /// The nodes of a cell, for its administration.
    #[cfg(feature = "admin")]
    fn nodes(&self) -> Option<&crate::admin::Nodes> {
        None
    }

    fn close(&self) -> Answer<'_, ()>;

    fn events(&self) -> Events;

    /// Finds weak spots in the server's configuration.
    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn session_ids(&self) -> Answer<'_, Vec<String>> {
        unsupported(self.name(), "list its sessions")
    }

    fn who<'a>(&'a self, _lock: &'a str) -> Answer<'a, LockState> {
        unsupported(self.name(), "report the holders of a lock")
    }

    fn locks<'a>(&'a self, _prefix: &'a str, _limit: u32, _after: &'a str) -> Answer<'a, LockPage> {
        unsupported(self.name(), "list locks")
    }

    fn check_token<'a>(&'a self, _lock: &'a str, _token: Token) -> Answer<'a, TokenCheck> {
        unsupported(self.name(), "check a token")
    }

    fn check_sequencer<'a>(&'a self, _sequencer: &'a str) -> Answer<'a, TokenCheck> {
        unsupported(self.name(), "check a sequencer")
    }

    fn force_release<'a>(&'a self, _lock: &'a str, _reason: &'a str) -> Answer<'a, ForcedRelease> {
        unsupported(self.name(), "release a lock by force")
    }

    fn status(&self) -> Answer<'_, Status> {
        unsupported(self.name(), "report its status")
    }

    fn history<'a>(&'a self, _lock: &'a str, _limit: u32) -> Answer<'a, Vec<LockEvent>> {
        unsupported(self.name(), "report the history of a lock")
    }

    fn audit(&self, _limit: u32) -> Answer<'_, Audit> {
        unsupported(self.name(), "report the actions of operators")
    }

    fn top(&self, _limit: u32) -> Answer<'_, Top> {
        unsupported(self.name(), "report contention")
    }

    fn blocked<'a>(&'a self, _lock: &'a str) -> Answer<'a, Vec<Blocked>> {
        unsupported(self.name(), "report who waits for whom")
    }

    /// Returns the leader of an election: at once if its epoch differs from the known one (0: no leader), else as soon as it
    /// changes, or after [`OBSERVE_TIMEOUT`].
    fn leader<'a>(&'a self, election: &'a str, known: Option<u64>) -> Answer<'a, Option<Leader>> {
        Box::pin(async move {
            let lock = crate::election::Election::lock_of(election);
            let began = Moment::now();
            loop {
                let leader = Leader::of(split_owners(self.who(&lock).await?));
                let epoch = leader.as_ref().map_or(0, |leader| leader.epoch);
                if known != Some(epoch) || Moment::now().since(began) > OBSERVE_TIMEOUT {
                    return Ok(leader);
                }
                tokio::time::sleep(LEADER_POLL_INTERVAL).await;
            }
        })
    }

    /// Transfers leadership to another candidate.
    fn hand_over<'a>(
        &'a self,
        _election: &'a str,
        _session: &'a str,
        _epoch: Token,
        _to: &'a str,
    ) -> Answer<'a, ()> {
        unsupported(self.name(), "transfer leadership: resign instead")
    }

    fn take_rate<'a>(
        &'a self,
        _limiter: &'a str,
        _permits: u64,
        _rate_per_s: f64,
        _burst: u64,
    ) -> Answer<'a, Taken> {
        unsupported(self.name(), "limit a rate")
    }

    fn get_value<'a>(&'a self, _key: &'a str) -> Answer<'a, Option<Value>> {
        unsupported(self.name(), "store values")
    }

    fn put_value<'a>(
        &'a self,
        _key: &'a str,
        _value: Vec<u8>,
        _fence: Option<Fence>,
        _if_version: Option<u64>,
    ) -> Answer<'a, u64> {
        unsupported(self.name(), "store values")
    }

    fn delete_value<'a>(
        &'a self,
        _key: &'a str,
        _fence: Option<Fence>,
        _if_version: Option<u64>,
    ) -> Answer<'a, ()> {
        unsupported(self.name(), "store values")
    }
}

fn unsupported<'a, T: Send + 'a>(engine: &str, what: &str) -> Answer<'a, T> {
    let error = Error::unsupported(format!("the engine {engine} cannot {what}"));
    Box::pin(std::future::ready(Err(error)))
}

/// A request for one lock or several.
#[derive(Debug, Clone)]
pub(crate) struct AcquireRequest {
    pub(crate) locks: Locks,
    pub(crate) mode: Mode,
    pub(crate) permits: Option<u32>,
    pub(crate) capacity: Option<u32>,
    pub(crate) wait: Wait,
    pub(crate) lock_delay: Duration,
    /// The ID chosen by the caller.
    pub(crate) request_id: Option<SmolStr>,
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) works_in_jeopardy: bool,
    pub(crate) scope: Option<ScopeOptions>,
    /// The value that a candidate announces.
    pub(crate) value: Option<SmolStr>,
}

/// The scope of a request.
#[derive(Debug, Clone)]
pub(crate) struct ScopeOptions {
    pub(crate) name: SmolStr,
    pub(crate) policy: Policy,
    /// All its locks are in one session, hence have one time to live.
    pub(crate) ttl: Duration,
}

impl AcquireRequest {
    pub(crate) fn new(locks: Locks, options: &Options) -> AcquireRequest {
        AcquireRequest {
            locks,
            mode: Mode::Exclusive,
            permits: None,
            capacity: None,
            wait: Wait::Forever,
            lock_delay: Duration::ZERO,
            request_id: None,
            ttl: options.ttl,
            grace: options.grace,
            works_in_jeopardy: false,
            scope: None,
            value: None,
        }
    }

    /// Acquires in a scope. All locks of a scope are in one session, with its time to live.
    pub(crate) fn set_scope(&mut self, scope: ScopeOptions) {
        self.ttl = scope.ttl;
        self.scope = Some(scope);
    }

    /// Keeps working in jeopardy for this long.
    pub(crate) fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
        self.works_in_jeopardy = true;
    }

    /// Validates the request before any engine is called.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.scope {
            Some(scope) if scope.ttl != self.ttl => Err(Error::invalid(format!(
                "the locks of the scope \"{}\" share one session: set the time to live on the scope, not on the lock",
                scope.name
            ))),
            _ => Ok(()),
        }
    }
}

/// The owner as stored on other vendors' servers: with the value that a candidate announces.
#[cfg(feature = "_servers")]
pub(crate) fn owner_with_value(value: Option<&SmolStr>, owner: &str) -> String {
    match value {
        Some(value) => format!("{value}{VALUE_SEPARATOR}{owner}"),
        None => owner.to_owned(),
    }
}

/// Separates the value of a candidate from its owner.
const VALUE_SEPARATOR: char = '\u{1f}';
/// The interval in which an observer polls an engine that cannot push changes.
const LEADER_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The longest wait of an observer for a change.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Splits the values of candidates from the owners.
pub(crate) fn split_owners(mut state: LockState) -> LockState {
    let split = |owner: &mut String, value: &mut String| {
        if let Some((before, after)) = owner.split_once(VALUE_SEPARATOR) {
            (*value, *owner) = (before.to_owned(), after.to_owned());
        }
    };
    state.holders.iter_mut().for_each(|holder| split(&mut holder.owner, &mut holder.value));
    state.queue.iter_mut().for_each(|waiter| split(&mut waiter.owner, &mut waiter.value));
    state
}

/// How long a request waits in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    For(Duration),
    Forever,
}

impl Wait {
    pub(crate) fn at_most(limit: Duration) -> Wait {
        if limit.is_zero() { Wait::No } else { Wait::For(limit) }
    }
}

/// A token as the condition of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) lock: String,
    pub(crate) token: Token,
}
