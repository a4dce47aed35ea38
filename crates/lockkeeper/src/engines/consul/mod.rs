//! Locks in Consul.
//!
//! # The recipe
//!
//! A session with a time to live, renewed at a third of it; there is one for each time to live and lock-delay that a
//! keeper uses. A lock is one key. It is acquired by a transaction of two steps: the key is still as we saw it when it
//! was free, and it is now locked by our session. Released the same way, so nothing that was granted since is ever
//! touched. Who waits has a blocking query on the key, and does not poll. Tasks of one keeper stand in a line of their
//! own: one of them asks Consul, so a release wakes one waiter of each keeper, not all of them.
//!
//! ```text
//! <root>/locks/<lock>          the key: Session (who holds it), LockIndex (how often it was acquired), value (owner, id)
//! <root>/shares/<lock>/<id>    one who shares it: Session, value (owner, id, token, what it takes)
//! ```
//!
//! Who shares a lock, or has some of its permits, has a key of its own, locked by its session: Consul takes the session off
//! when it ends. The lock's own key is the turnstile. It is locked and unlocked again in the same transaction that
//! makes the share, on the condition that it is as it was before the shares were counted; so two who see the last place
//! cannot both get it, the LockIndex counts shared grants as well, and whoever wants the lock alone sees that it has
//! to count shares first.
//!
//! An acquire whose answer was lost may still come to pass later. Its condition is the key's ModifyIndex: whoever gives
//! up in doubt changes the key, if it is still free, and what was on its way can then never succeed.
//!
//! The session has no health checks: with Consul's default check, an agent that gossip thinks dead would lose its locks
//! before its holders could know.
//!
//! # The token
//!
//! The key's LockIndex, which rises by one with each acquire. It lives in the key, so the keys of locks stay. With
//! `?behavior=delete` they go when the lock is free, the LockIndex begins again at 1, and the token counts as volatile.
//! A token belongs to the session that got it: `who` shows both.
//!
//! # Whose clock decides
//!
//! The Consul leader's. **It lets a session live for up to twice its time to live**, and gives all sessions a full one
//! when the leader changes. With a lock-delay, the lock stays closed for that long on top. So the lock of a dead holder
//! with 10 s comes free after 10 to 20 s. The guard goes by its own clock and ends after one time to live.
//!
//! # What it does NOT promise
//!
//! That two clients never believe to hold the lock at once: a paused holder does, when it wakes after its session.
//!
//! ```text
//! A       acquires (LockIndex 7) | paused ........................... | wakes, writes with 7: refused by the gate
//! Consul                         |   session of A ends (2 x TTL)      |
//! B                              |         acquires (LockIndex 8)     |
//! ```
//!
//! - Who is next among several keepers is a race; within a keeper it is first come, first served.
//! - A writer may wait for as long as readers of other keepers come and go: there is no queue in which it would be next.
//! - Who waits in other keepers cannot be seen. Several locks at once are not there, nor a lock-delay on a lock that is
//!   shared or counted.
//! - After a lock-delay nothing is told: waiters then ask again several times a second until it is over.

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

/// What Consul can and cannot promise.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    engine: "consul",
    scheme: "consul://",
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

/// With `?behavior=delete` the counter goes with the key.
const DELETING: Capabilities = Capabilities { token: TokenKind::Volatile, ..CAPABILITIES };

/// The engine's recipe.
pub(crate) struct Consul {
    client: Client,
    root: String,
    owner: String,
    deletes: bool,
    lines: LocalQueues,
    /// The ModifyIndex at which a lock was last seen free; 0 if there was no key.
    seen_free: Mutex<HashMap<SmolStr, u64>>,
}

pub(crate) async fn connect(url: ServerUrl, options: &Options) -> Result<SessionEngine<Consul>, Error> {
    url.allow_options(&["behavior"])?;
    let deletes = match url.option("behavior") {
        None | Some("release") => false,
        Some("delete") => true,
        Some(other) => {
            return Err(Error::invalid(format!(
                "there is no behavior \"{other}\": write behavior=release or behavior=delete"
            )));
        }
    };
    let root = url.path.trim_matches('/').to_owned();
    let consul = Consul {
        client: Client::new(url.hosts, url.password.filter(|token| !token.is_empty()), options)?,
        root: if root.is_empty() { "lockkeeper".to_owned() } else { root },
        owner: options.owner.clone(),
        deletes,
        lines: LocalQueues::default(),
        seen_free: Mutex::default(),
    };
    consul.first_answer(options.connect_timeout).await?;
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
        self.unlock_by_force(lock).await
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

    fn distrust_connection(&self) {
        self.client.leave_link(self.client.generation());
    }

    async fn close_session(&self, session: &ConsulSession) -> Result<(), Failure> {
        self.destroy_session(session).await
    }

    async fn enter(&self, session: &ConsulSession, ticket: &Ticket, mode: Try) -> Result<Entered, Failure> {
        self.enter_line(session, ticket, mode).await
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
