//! Locks in etcd.
//!
//! # The recipe
//!
//! A session is a lease, renewed on one stream at a third of its time to live. A keeper has one for each time to live in use.
//! Each acquire puts a key with that lease below the lock's name. The key with the lowest create-revision holds the lock; each
//! other waiter watches only the key before its own, so a release wakes one waiter. Because each acquire has its own key, two
//! tasks of one keeper exclude each other (etcd-io/etcd#11360).
//!
//! ```text
//! <root>/locks/<lock>/<claim>-<lease>-<id>    an entry of the queue; its value names the owner
//! <root>/sessions/<lease>                     a session; its mod-revision is the condition of every entry
//! ```
//!
//! A put whose answer was lost can still take effect after its caller is gone. So the condition of every put is the
//! mod-revision of its session's key. A caller that gives up without an answer writes that key in the transaction that deletes
//! the entry: a put that is still in flight then fails, and leaves no stray entry.
//!
//! # The token
//!
//! The create-revision of the entry's key. Revisions count all writes of the cluster and survive restarts. A restore from a
//! snapshot sets them back, unless it uses `--bump-revision` (etcd 3.6).
//!
//! # Whose clock decides
//!
//! The etcd leader's, which expires the leases. A new leader gives all leases a full time to live. The guard uses its own clock,
//! counted from when the renewal was sent, and ends earlier. etcd rounds the time to live to whole seconds and has a minimum
//! (1.5 election timeouts, 2 s by default). A shorter time to live is enforced by the guard only, and the lock of a crashed
//! holder is kept for etcd's minimum.
//!
//! # What it does NOT promise
//!
//! That only one client at a time believes that it holds the lock. No lease can promise that.
//!
//! ```text
//! A  acquires (token 7) | paused ..................................... | resumes, writes with 7: refused by the gate
//! etcd                  |   lease of A expires, its key is deleted     |
//! B                     |         acquires (token 9), writes with 9    |
//! ```
//!
//! - The lease of a waiter can expire during the wait. Therefore, after a contended wait, the lease is renewed once more before
//!   the guard is returned (etcd-io/etcd#11456, found by Jepsen in 3.4.3).
//! - A stalled etcd leader can revoke leases that another leader has renewed (etcd-io/etcd#15247, fixed in 3.4.29 and 3.5.11):
//!   then only the token protects the resource.
//! - Lock-delay and several locks at once are not supported.
//! - A release of a counted lock wakes all waiters; exclusive and shared locks wake one.

mod client;
mod lock;
mod session;
mod token;
mod wait;
pub(crate) mod wire;

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

pub(crate) static CAPABILITIES: Capabilities = Capabilities {
    engine: super::ETCD.name,
    prefix: super::ETCD.prefixes[0],
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
    etcd.wait_until_reachable(options.connect_timeout).await?;
    Ok(sessions::start(etcd, options))
}

impl Etcd {
    /// Tries the members in turn until one answers or the timeout has passed.
    async fn wait_until_reachable(&self, timeout: Duration) -> Result<(), Error> {
        let until = Moment::now().plus(timeout);
        let mut backoff = Backoff::default();
        loop {
            let generation = self.client.generation();
            let left = until.since(Moment::now());
            let why = match tokio::time::timeout(left, self.first_key(&self.sessions_prefix())).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(Failure::Refused(error))) => return Err(error),
                Ok(Err(Failure::Unreachable(why))) => why.to_string(),
                Ok(Err(Failure::Gone)) => "unexpected answer".to_owned(),
                Err(_) => format!("no answer within {timeout:?}"),
            };
            if Moment::now() >= until {
                return Err(Error::unavailable(format!(
                    "{} does not answer ({why}): check that it is running, and that the port is etcd's client port",
                    self.client.address()
                )));
            }
            self.client.switch_member(generation);
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

    fn on_renewal_timeout(&self) {
        self.client.switch_member(self.client.generation());
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
