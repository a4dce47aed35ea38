//! Locks in ZooKeeper.
//!
//! # The recipe
//!
//! Who wants a lock creates an ephemeral sequential node below the lock's name. The lowest sequence number holds the
//! lock; everyone else watches the one node before its own, so a release wakes one waiter. Each acquire has its own node:
//! two tasks of one keeper exclude each other.
//!
//! ```text
//! <chroot>/lockkeeper/locks/<lock>/<claim>_<session>_<id>_<sequence>
//! ```
//!
//! The id is random, chosen before the node is created. If the answer to the create is lost, the node is found by its id
//! after the connection is back: it is taken over, or removed. A lock's own node is a container, which ZooKeeper removes
//! by itself some time after the last entry: names leave no garbage.
//!
//! # The token
//!
//! The czxid of the entry's node: the number of the transaction that created it, from the one log of all writes. It
//! rises over restarts and new leaders (the upper half is the leader's epoch).
//!
//! # Whose clock decides
//!
//! The ZooKeeper leader's. It negotiates the time to live: between 2 and 20 ticks, 4 s to 40 s by default. A longer one
//! is cut down to that; with a shorter one the guard ends when its user said, and the lock outlives a dead holder for
//! ZooKeeper's minimum. The guard goes by its own clock, from when a renewal (a `sync`, which the leader answers) was
//! sent.
//!
//! | ZooKeeper | here |
//! |---|---|
//! | SUSPENDED (connection lost) | the event `Jeopardy`: guards are in jeopardy, `check` refuses. Work in `run` goes on until the deadline, because until then nobody else can be let in |
//! | RECONNECTED | a renewal at once, then the event `Recovered`: held again |
//! | LOST, EXPIRED | the session and all its guards are lost |
//!
//! # What it does NOT promise
//!
//! That two clients never believe to hold the lock at once, although ZooKeeper's own recipe page says so. A paused
//! holder does:
//!
//! ```text
//! A          acquires (token 7) | paused ............................... | wakes, writes with 7: refused by the gate
//! ZooKeeper                     |   session of A expires, node deleted   |
//! B                             |         acquires (token 9), writes     |
//! ```
//!
//! - A follower tells the leader of a client's life with a delay of up to half a tick. A renewal that was sent so late
//!   that it arrives in that gap is answered although the session expires: again the token is the defence.
//! - Lock-delay and several locks at once are not there.
//! - A counted lock wakes all who wait at each release; exclusive and shared ones wake one.

mod lock;
mod session;
mod token;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{Acls, Error as ZkError};

use self::session::{Link, Links};
use super::runtime::sessions::{self, Entered, Opened, Recipe, SessionEngine, Ticket, Try};
use super::runtime::{Failure, PageBuilder, Server, lock_state};
use crate::capabilities::{Capabilities, Class, ClockAuthority, Fairness, Finding, LossDetection, TokenKind};
use crate::error::Error;
use crate::options::Options;
use crate::url::ServerUrl;
use crate::view::{ForcedRelease, LockPage, LockState};

/// What ZooKeeper can and cannot promise.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    engine: "zookeeper",
    scheme: "zookeeper://",
    class: Class::Correctness,
    token: TokenKind::Durable,
    token_source: "the czxid of the entry's node",
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
pub(crate) struct Zookeeper {
    hosts: Vec<String>,
    account: Option<String>,
    /// Below it are the locks.
    root: String,
    owner: String,
    connect_timeout: Duration,
    links: Links,
}

pub(crate) async fn connect(url: ServerUrl, options: &Options) -> Result<SessionEngine<Zookeeper>, Error> {
    url.allow_options(&[])?;
    let account =
        url.user.as_ref().map(|user| format!("{user}:{}", url.password.clone().unwrap_or_default()));
    let chroot = url.path.trim_matches('/');
    let slash = if chroot.is_empty() { "" } else { "/" };
    let zookeeper = Zookeeper {
        root: format!("{slash}{chroot}/lockkeeper/locks"),
        hosts: url.hosts,
        account,
        owner: options.owner.clone(),
        connect_timeout: options.connect_timeout,
        links: Links::default(),
    };
    zookeeper.first_link(options.ttl).await?;
    Ok(sessions::start(zookeeper, options))
}

impl Zookeeper {
    /// Who may touch our nodes: whoever logged in as we did, or all.
    fn acls(&self) -> Acls<'static> {
        if self.account.is_some() { Acls::creator_all() } else { Acls::anyone_all() }
    }

    /// What an error of ZooKeeper means.
    fn failed(&self, error: &ZkError) -> Failure {
        match error {
            ZkError::SessionExpired | ZkError::SessionMoved | ZkError::ClientClosed => Failure::Gone,
            ZkError::NoAuth => Failure::Refused(Error::Forbidden(
                format!(
                    "{} does not let us write below {}: log in with zookeeper://user:password@host:port, or change the rights",
                    self.address(),
                    self.root
                )
                .into(),
            )),
            ZkError::AuthFailed => Failure::Refused(Error::Unauthenticated(
                format!("{} refuses this user or password", self.address()).into(),
            )),
            ZkError::QuotaExceeded => Failure::Refused(Error::Limit(
                format!("a quota of {} is reached: raise it, or use fewer locks", self.address()).into(),
            )),
            ZkError::BadArguments(why) => Failure::Refused(Error::invalid(format!("ZooKeeper cannot do this: {why}"))),
            other => Failure::unreachable(other.to_string()),
        }
    }
}

impl Server for Zookeeper {
    fn capabilities(&self) -> &'static Capabilities {
        &CAPABILITIES
    }

    fn address(&self) -> String {
        format!("ZooKeeper at {}", self.hosts.join(", "))
    }

    async fn examine(&self) -> Result<Vec<Finding>, Failure> {
        let client = self.reader().await?;
        self.find_weak_spots(&client).await
    }

    async fn who(&self, lock: &str) -> Result<LockState, Failure> {
        let client = self.reader().await?;
        Ok(lock_state(lock, &self.read_queue(&client, lock).await?))
    }

    async fn locks(&self, prefix: &str, limit: usize, after: &str) -> Result<LockPage, Failure> {
        let client = self.reader().await?;
        let mut page = PageBuilder::new(self.read_names(&client).await?, prefix, limit, after);
        while let Some(name) = page.next_name() {
            let queue = self.read_queue(&client, &name).await?;
            page.add(&name, &queue);
        }
        Ok(page.finish())
    }

    async fn force_release(&self, lock: &str) -> Result<ForcedRelease, Failure> {
        let client = self.reader().await?;
        self.delete_holders(&client, lock).await
    }

    async fn close(&self) {
        self.links.close_spare().await;
    }
}

impl Recipe for Zookeeper {
    type Session = Arc<Link>;

    async fn open(&self, ttl: Duration, _: Duration) -> Result<Opened<Arc<Link>>, Failure> {
        self.open_link(ttl).await
    }

    async fn renew(&self, link: &Arc<Link>) -> Result<(), Failure> {
        let client = link.client()?;
        client.sync(&self.root).await.map_err(|error| self.failed(&error))
    }

    async fn suspended(&self, link: &Arc<Link>) {
        link.alarmed().await;
    }

    async fn close_session(&self, link: &Arc<Link>) -> Result<(), Failure> {
        link.close().await;
        Ok(())
    }

    async fn enter(&self, link: &Arc<Link>, ticket: &Ticket, mode: Try) -> Result<Entered, Failure> {
        self.enter_queue(&link.client()?, ticket, mode).await
    }

    async fn wait(&self, link: &Arc<Link>, ticket: &Ticket) -> Result<Option<u64>, Failure> {
        self.wait_for_turn(&link.client()?, ticket).await
    }

    async fn leave(&self, link: &Arc<Link>, ticket: &Ticket) -> Result<bool, Failure> {
        self.leave_queue(&link.client()?, ticket).await
    }

    async fn taken_away(&self, link: &Arc<Link>, ticket: &Ticket) -> Result<(), Failure> {
        self.wait_for_loss(&link.client()?, ticket).await
    }
}
