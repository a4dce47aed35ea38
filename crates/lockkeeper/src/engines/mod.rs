//! The engines behind the one API, named in `registry.rs`. Each is a folder with the same file names: `mod.rs` (what it
//! does and does NOT promise), `session.rs`, `lock.rs`, `wait.rs`, `token.rs`. Engines on other vendors' servers share
//! `runtime/`.

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

/// The answer of an engine, some time later.
pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// What decides who holds a lock. Everything but acquire, release and close has an answer for engines that cannot do it.
pub(crate) trait Engine: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// What it can and cannot promise.
    fn capabilities(&self) -> &'static Capabilities;

    /// Dropping the future leaves no waiter and no holder behind.
    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<'_, Arc<Grant>>;

    /// Dropping the future is no release: the guard gives it back then.
    fn release<'a>(&'a self, grant: &'a Grant) -> Answer<'a, ()>;

    /// Releases in the background; never blocks. A second time does nothing.
    fn give_back(&self, grant: &Grant);

    /// The nodes of a cell, for its administration.
    #[cfg(feature = "admin")]
    fn nodes(&self) -> Option<&crate::admin::Nodes> {
        None
    }

    fn close(&self) -> Answer<'_, ()>;

    fn events(&self) -> Events;

    /// Looks for what is not as safe as it could be in the server's set-up.
    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn session_ids(&self) -> Answer<'_, Vec<String>> {
        unsupported(self.name(), "list its sessions")
    }

    fn who<'a>(&'a self, _lock: &'a str) -> Answer<'a, LockState> {
        unsupported(self.name(), "say who holds a lock")
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
        unsupported(self.name(), "tell its status")
    }

    fn history<'a>(&'a self, _lock: &'a str, _limit: u32) -> Answer<'a, Vec<LockEvent>> {
        unsupported(self.name(), "tell what happened to a lock")
    }

    fn audit(&self, _limit: u32) -> Answer<'_, Audit> {
        unsupported(self.name(), "tell what operators did")
    }

    fn top(&self, _limit: u32) -> Answer<'_, Top> {
        unsupported(self.name(), "tell where it is crowded")
    }

    fn blocked<'a>(&'a self, _lock: &'a str) -> Answer<'a, Vec<Blocked>> {
        unsupported(self.name(), "tell who waits for whom")
    }

    /// Who leads an election: now, or as soon as it is another one than the one with the known epoch (0: nobody), or after
    /// a while in any case.
    fn leader<'a>(&'a self, election: &'a str, known: Option<u64>) -> Answer<'a, Option<Leader>> {
        Box::pin(async move {
            let lock = crate::election::lock_of(election);
            let began = Moment::now();
            loop {
                let leader = Leader::of(split_owners(self.who(&lock).await?));
                let epoch = leader.as_ref().map_or(0, |leader| leader.epoch);
                if known != Some(epoch) || Moment::now().since(began) > OBSERVED_FOR {
                    return Ok(leader);
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        })
    }

    /// Passes an office on.
    fn hand_over<'a>(
        &'a self,
        _election: &'a str,
        _session: &'a str,
        _epoch: Token,
        _to: &'a str,
    ) -> Answer<'a, ()> {
        unsupported(self.name(), "hand an office over: resign instead")
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
        unsupported(self.name(), "keep values")
    }

    fn put_value<'a>(
        &'a self,
        _key: &'a str,
        _value: Vec<u8>,
        _fence: Option<Fence>,
        _if_version: Option<u64>,
    ) -> Answer<'a, u64> {
        unsupported(self.name(), "keep values")
    }

    fn delete_value<'a>(
        &'a self,
        _key: &'a str,
        _fence: Option<Fence>,
        _if_version: Option<u64>,
    ) -> Answer<'a, ()> {
        unsupported(self.name(), "keep values")
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
    /// The caller's own id for it.
    pub(crate) request_id: Option<SmolStr>,
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) works_in_jeopardy: bool,
    pub(crate) scope: Option<InScope>,
    /// What a candidate stands for.
    pub(crate) value: Option<SmolStr>,
}

/// The line of work that a request belongs to.
#[derive(Debug, Clone)]
pub(crate) struct InScope {
    pub(crate) name: SmolStr,
    pub(crate) policy: Policy,
    /// All its locks have to be in one session, which is one time to live.
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
}

impl AcquireRequest {
    /// What is wrong with it before any engine is asked.
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

/// The owner as engines of others keep it: with what a candidate stands for.
#[cfg(feature = "_servers")]
pub(crate) fn signed(value: Option<&SmolStr>, owner: &str) -> String {
    match value {
        Some(value) => format!("{value}{VALUE_MARK}{owner}"),
        None => owner.to_owned(),
    }
}

/// Between what a candidate stands for and who it is.
const VALUE_MARK: char = '\u{1f}';
/// How often engines of others are asked who leads.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long an observer waits for a change before it looks anew.
const OBSERVED_FOR: Duration = Duration::from_secs(30);

/// Takes what candidates stand for out of the owners.
pub(crate) fn split_owners(mut state: LockState) -> LockState {
    let split = |owner: &mut String, value: &mut String| {
        if let Some((before, after)) = owner.split_once(VALUE_MARK) {
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

/// A token as the condition of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) lock: String,
    pub(crate) token: Token,
}
