//! Locks in etcd.
//!
//! # The recipe
//!
//! A session is a lease, renewed on one stream at a third of its time to live; there is one for each time to live that a
//! keeper uses. Who wants a lock puts a key of its own with that lease below the lock's name. The key with the lowest
//! create-revision holds the lock; everyone else watches the one key before its own, so a release wakes one waiter.
//! Each acquire has its own key: two tasks of one keeper exclude each other (etcd-io/etcd#11360).
//!
//! ```text
//! <root>/locks/<lock>/<claim>-<lease>-<id>    an entry in the queue; the value says who it is
//! <root>/sessions/<lease>                     a session; its mod-revision is the condition of every entry
//! ```
//!
//! A put whose answer was lost may still come to pass later, after its caller has gone. So every put has a condition, the
//! mod-revision of its session's key. Whoever gives up in doubt writes that key again in the same transaction that
//! deletes the entry: what was on its way can then never succeed, and there is no ghost.
//!
//! # The token
//!
//! The create-revision of the entry's key. Revisions count all writes of the cluster and survive restarts; a restore from
//! a snapshot takes them back, unless it is done with `--bump-revision` (etcd 3.6).
//!
//! # Whose clock decides
//!
//! The etcd leader's, which runs the leases; it gives all of them a full time to live when the leader changes. The guard
//! goes by its own clock, from when the renewal was sent, and ends earlier. etcd rounds to whole seconds and has a
//! minimum (1.5 election time-outs, 2 s by default): a shorter time to live is a matter of the guard alone, and the lock
//! outlives a dead holder for etcd's minimum.
//!
//! # What it does NOT promise
//!
//! That two clients never believe to hold the lock at once. No lease can.
//!
//! ```text
//! A  acquires (token 7) | paused ..................................... | wakes, writes with 7: refused by the gate
//! etcd                  |   lease of A ends, its key is deleted        |
//! B                     |         acquires (token 9), writes with 9    |
//! ```
//!
//! - A lease that died while its owner waited is no grant: after a contended wait the lease is renewed once more before
//!   the guard is handed out (etcd-io/etcd#11456, the hole that Jepsen found in 3.4.3).
//! - An etcd leader that was stalled can revoke leases that another leader has renewed (etcd-io/etcd#15247, fixed in
//!   3.4.29, 3.5.11): the token is then the only defence.
//! - Lock-delay and several locks at once are not there.
//! - A counted lock wakes all who wait at each release; exclusive and shared ones wake one.

mod client;
mod lock;
mod session;
mod token;
mod wait;
mod wire;

use std::time::Duration;

use self::client::{Account, Client};
use self::session::Lease;
use super::runtime::sessions::{self, Entered, Opened, Recipe, SessionEngine, Ticket, Try};
use super::runtime::{Failure, PageBuilder, Server, lock_state};
use crate::backoff::Backoff;
use crate::capabilities::{Capabilities, Class, ClockAuthority, Fairness, Finding, LossDetection, TokenKind};
use crate::clock::Moment;
use crate::error::Error;
use crate::options::Options;
use crate::url::ServerUrl;
use crate::view::{ForcedRelease, LockPage, LockState};

/// What etcd can and cannot promise.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    engine: "etcd",
    scheme: "etcd://",
    class: Class::Correctness,
    token: TokenKind::Durable,
    token_source: "the create-revision of the entry's key",
    clock: ClockAuthority::Server,
    fairness: Fairness::Fifo,
    loss: LossDetection::Session,
    shared: true,
    counted: true,
    several: false,
    lock_delay: false,
    who: true,
    force_release: true,
    elections: true,
    scopes: false,
    rates: false,
    values: false,
    ttl_min: Duration::from_millis(lockkeeper_core::limits::TTL_MS_MIN),
    ttl_max: Duration::from_millis(lockkeeper_core::limits::TTL_MS_MAX),
};

/// The engine's recipe.
pub(crate) struct Etcd {
    client: Client,
    root: String,
    owner: String,
}

pub(crate) async fn connect(url: ServerUrl, options: &Options) -> Result<SessionEngine<Etcd>, Error> {
    url.allow_options(&[])?;
    let account = url.user.map(|name| Account { name, password: url.password.unwrap_or_default() });
    let client = Client::new(url.hosts, account, options.connect_timeout)?;
    let root = url.path.trim_matches('/').to_owned();
    let root = if root.is_empty() { "lockkeeper".to_owned() } else { root };
    let etcd = Etcd { client, root, owner: options.owner.clone() };
    etcd.first_answer(options.connect_timeout).await?;
    Ok(sessions::start(etcd, options))
}

impl Etcd {
    /// Asks one member after the other until one answers or the time is over.
    async fn first_answer(&self, timeout: Duration) -> Result<(), Error> {
        let until = Moment::now().plus(timeout);
        let mut backoff = Backoff::default();
        loop {
            let generation = self.client.generation();
            let left = until.since(Moment::now());
            let why = match tokio::time::timeout(left, self.queue_head(&self.sessions_prefix())).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(Failure::Refused(error))) => return Err(error),
                Ok(Err(Failure::Unreachable(why))) => why.to_string(),
                Ok(Err(Failure::Gone)) => "an unexpected answer".to_owned(),
                Err(_) => format!("no answer within {timeout:?}"),
            };
            if Moment::now() >= until {
                return Err(Error::unavailable(format!(
                    "{} does not answer ({why}): is it running, is the port right, and is it etcd?",
                    self.client.address()
                )));
            }
            self.client.leave_link(generation);
            backoff.wait().await;
        }
    }
}

impl Server for Etcd {
    fn capabilities(&self) -> &'static Capabilities {
        &CAPABILITIES
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
        self.delete_holders(lock).await
    }
}

impl Recipe for Etcd {
    type Session = Lease;

    async fn open(&self, ttl: Duration, _: Duration) -> Result<Opened<Lease>, Failure> {
        self.open_lease(ttl).await
    }

    async fn renew(&self, lease: &Lease) -> Result<(), Failure> {
        self.renew_lease(lease).await
    }

    fn distrust_connection(&self) {
        self.client.leave_link(self.client.generation());
    }

    async fn close_session(&self, lease: &Lease) -> Result<(), Failure> {
        self.close_lease(lease).await
    }

    async fn enter(&self, lease: &Lease, ticket: &Ticket, mode: Try) -> Result<Entered, Failure> {
        self.enter_queue(lease, ticket, mode).await
    }

    async fn wait(&self, lease: &Lease, ticket: &Ticket) -> Result<Option<u64>, Failure> {
        self.wait_for_turn(lease, ticket).await
    }

    async fn leave(&self, lease: &Lease, ticket: &Ticket) -> Result<bool, Failure> {
        self.leave_queue(lease, ticket).await
    }

    async fn taken_away(&self, lease: &Lease, ticket: &Ticket) -> Result<(), Failure> {
        self.wait_for_loss(lease, ticket).await
    }
}
