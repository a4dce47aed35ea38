//! Locks in Consul.
//!
//! # The recipe
//!
//! A keeper has one session for each combination of time to live and lock-delay, renewed at a third of its time to live. A lock
//! is one key. An acquire is a transaction that checks that the key has not changed since it was read as free, and locks it
//! with the session. A release has the same condition, so it cannot affect a later grant. The waiters of a keeper form a local
//! FIFO queue, whose head has a blocking query on the key. Nothing polls, and a release wakes one waiter of each keeper.
//!
//! ```text
//! <root>/locks/<lock>          the lock's key: Session (its holder), LockIndex (number of grants), value (owner, ID)
//! <root>/shares/<lock>/<id>    a share: Session, value (owner, ID, token, claim)
//! ```
//!
//! Each holder of a shared or counted lock has its own key, a share, locked by its session. Consul detaches the session from
//! the share when the session ends. The transaction that creates a share also locks and unlocks the lock's key, on the
//! condition that the key has not changed since the shares were counted. Hence two clients cannot both take the last permit,
//! the LockIndex counts shared grants too, and the key's value tells exclusive acquires to count the shares first.
//!
//! An acquire whose answer was lost can still take effect later. Its condition is the key's ModifyIndex: a caller that gives up
//! without an answer changes the index if the key is still free, and a request that is still in flight then fails.
//!
//! The session has no health checks. With Consul's default check, an agent that the gossip protocol suspects to be down would
//! lose its locks before their holders could know.
//!
//! # The token
//!
//! The key's LockIndex, incremented by each grant. It is stored in the key, so the keys of free locks are kept. With
//! `?behavior=delete` they are deleted, the LockIndex starts at 1 again, and the token is volatile. A token belongs to the
//! session that it was granted to: `who` shows both.
//!
//! # Whose clock decides
//!
//! The Consul leader's. **A session can live for up to twice its time to live**, and a new leader gives all sessions a full one.
//! A lock-delay is added to this. So the lock of a crashed holder with 10 s is free after 10 to 20 s. The guard uses its own
//! clock and ends after one time to live.
//!
//! # What it does NOT promise
//!
//! That only one client at a time believes that it holds the lock. A holder that is paused until its session has expired still
//! believes so when it resumes:
//!
//! ```text
//! A       acquires (LockIndex 7) | paused ........................... | resumes, writes with 7: refused by the gate
//! Consul                         |   session of A expires (2 x TTL)   |
//! B                              |         acquires (LockIndex 8)     |
//! ```
//!
//! - Keepers race for a free lock; the order is FIFO only within a keeper.
//! - A writer can starve while readers of other keepers come and go, because it has no place in a common queue.
//! - The waiters of other keepers are not visible. Several locks at once are not supported, nor is a lock-delay on a shared or
//!   counted lock.
//! - Consul does not announce the end of a lock-delay: until then, waiters poll several times a second.

mod client;
mod lock;
mod session;
mod share;
mod token;
mod wait;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use smol_str::SmolStr;

use self::client::Client;
use self::session::ConsulSession;
use super::runtime::sessions::{self, Entered, Opened, Recipe, SessionEngine, Ticket, Try};
use super::runtime::{Failure, LocalQueues, PageBuilder, Server, lock_state};
use crate::capabilities::{Capabilities, Class, ClockAuthority, Fairness, Finding, LossDetection, TokenKind};
use crate::error::Error;
use crate::options::Options;
use crate::url::ServerUrl;
use crate::view::{ForcedRelease, LockPage, LockState};

pub(crate) static CAPABILITIES: Capabilities = Capabilities {
    engine: super::CONSUL.name,
    prefix: super::CONSUL.prefixes[0],
    class: Class::Correctness,
    token: TokenKind::Durable,
    token_source: "the LockIndex of the key",
    clock: ClockAuthority::Server,
    fairness: Fairness::FifoInKeeper,
    loss: LossDetection::Session,
    shared: true,
    counted: true,
    several: false,
    lock_delay: true,
    who: true,
    force_release: true,
    elections: true,
    scopes: false,
    rates: false,
    values: false,
    ttl_min: Duration::from_secs(10),
    ttl_max: Duration::from_secs(24 * 60 * 60),
};

/// With `?behavior=delete` the token counter is deleted with the key.
static DELETING: Capabilities = Capabilities { token: TokenKind::Volatile, ..CAPABILITIES };

/// The engine's recipe.
pub(crate) struct Consul {
    client: Client,
    root: String,
    owner: String,
    /// Keys of free locks are deleted (`?behavior=delete`).
    deletes: bool,
    queues: LocalQueues,
    /// The ModifyIndex at which this keeper released a lock; 0 if the key was deleted.
    free_cache: Mutex<HashMap<SmolStr, u64>>,
}

pub(crate) async fn connect(url: ServerUrl, options: &Options) -> Result<SessionEngine<Consul>, Error> {
    url.allow_options(&["behavior"])?;
    let deletes = match url.option("behavior") {
        None | Some("release") => false,
        Some("delete") => true,
        Some(other) => {
            return Err(Error::invalid(format!(
                "\"{other}\" is not a behavior: write behavior=release or behavior=delete"
            )));
        }
    };
    let root = url.path.trim_matches('/').to_owned();
    let consul = Consul {
        client: Client::new(url.hosts, url.password.filter(|token| !token.is_empty()), options)?,
        root: if root.is_empty() { "lockkeeper".to_owned() } else { root },
        owner: options.owner.clone(),
        deletes,
        queues: LocalQueues::default(),
        free_cache: Mutex::default(),
    };
    consul.wait_until_reachable(options.connect_timeout).await?;
    Ok(sessions::start(consul, options))
}

impl Server for Consul {
    fn capabilities(&self) -> &'static Capabilities {
        if self.deletes { &DELETING } else { &CAPABILITIES }
    }

    fn address(&self) -> String {
        self.client.address()
    }

    async fn examine(&self) -> Result<Vec<Finding>, Failure> {
        self.find_weak_spots().await
    }

    async fn who(&self, lock: &str) -> Result<LockState, Failure> {
        Ok(lock_state(lock, &self.read_queue(lock).await?))
    }

    async fn locks(&self, prefix: &str, limit: usize, after: &str) -> Result<LockPage, Failure> {
        let mut page = PageBuilder::new(self.read_names(prefix).await?, prefix, limit, after);
        while let Some(name) = page.next_name() {
            let queue = self.read_queue(&name).await?;
            page.add(&name, &queue);
        }
        Ok(page.finish())
    }

    async fn force_release(&self, lock: &str) -> Result<ForcedRelease, Failure> {
        self.force_unlock(lock).await
    }
}

impl Recipe for Consul {
    type Session = ConsulSession;

    async fn open(&self, ttl: Duration, lock_delay: Duration) -> Result<Opened<ConsulSession>, Failure> {
        self.create_session(ttl, lock_delay).await
    }

    async fn renew(&self, session: &ConsulSession) -> Result<(), Failure> {
        self.renew_session(session).await
    }

    fn on_renewal_timeout(&self) {
        self.client.switch_agent(self.client.generation());
    }

    async fn close_session(&self, session: &ConsulSession) -> Result<(), Failure> {
        self.destroy_session(session).await
    }

    async fn enter(&self, session: &ConsulSession, ticket: &Ticket, mode: Try) -> Result<Entered, Failure> {
        self.enter_queue(session, ticket, mode).await
    }

    async fn wait(&self, session: &ConsulSession, ticket: &Ticket) -> Result<Option<u64>, Failure> {
        self.wait_for_turn(session, ticket).await.map(Some)
    }

    async fn leave(&self, session: &ConsulSession, ticket: &Ticket) -> Result<bool, Failure> {
        self.unlock(session, ticket).await
    }

    async fn taken_away(&self, session: &ConsulSession, ticket: &Ticket) -> Result<(), Failure> {
        self.wait_for_loss(session, ticket).await
    }
}
