//! Locks in ZooKeeper.
//!
//! # The recipe
//!
//! Each acquire creates an ephemeral sequential node below the lock's name. The node with the lowest sequence number holds the
//! lock; each other waiter watches only the node before its own, so a release wakes one waiter. Because each acquire has its
//! own node, two tasks of one keeper exclude each other.
//!
//! ```text
//! <chroot>/lockkeeper/locks/<lock>/<claim>_<session>_<id>_<sequence>
//! ```
//!
//! The ID is random and chosen before the node is created. If the answer to the create is lost, the node is found by its ID
//! after the reconnect, and used or removed. The parent node of a lock is a container, which ZooKeeper removes some time after
//! its last entry, so unused names need no space.
//!
//! # The token
//!
//! The czxid of the entry's node: the ID of the transaction that created it. All writes have IDs from one sequence, which
//! increases across restarts and leader changes (its upper half is the leader's epoch).
//!
//! # Whose clock decides
//!
//! The ZooKeeper leader's. It negotiates the time to live: between 2 and 20 ticks, 4 s to 40 s by default. A longer one is
//! reduced to the maximum. A shorter one is enforced by the guard only, and the lock of a crashed holder is kept for ZooKeeper's
//! minimum. The guard uses its own clock, counted from when the renewal (a `sync`, which the leader answers) was sent.
//!
//! | state of the session (Curator's names) | effect |
//! |---|---|
//! | SUSPENDED (connection lost) | the event `Jeopardy`: guards are in jeopardy and `check` fails. Work under `run` continues until the deadline, because the lock cannot be granted to another client before that |
//! | RECONNECTED | an immediate renewal, then the event `Recovered`: the guards hold again |
//! | LOST, EXPIRED | the session and all its guards are lost |
//!
//! # What it does NOT promise
//!
//! That only one client at a time believes that it holds the lock, although the page of ZooKeeper's own recipe says so. A
//! paused holder still believes so:
//!
//! ```text
//! A          acquires (token 7) | paused ............................... | resumes, writes with 7: refused by the gate
//! ZooKeeper                     |   session of A expires, node deleted   |
//! B                             |         acquires (token 9), writes     |
//! ```
//!
//! - A follower reports client activity to the leader with a delay of up to half a tick. A late renewal in this interval is
//!   answered, although the session expires: then only the token protects the resource.
//! - Lock-delay and several locks at once are not supported.
//! - A release of a counted lock wakes all waiters; exclusive and shared locks wake one.

mod lock;
mod session;
mod token;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{Acls, Error as ZkError};

use self::session::{Connection, Connections};
use super::runtime::sessions::{self, Entered, Opened, Recipe, SessionEngine, Ticket, Try};
use super::runtime::{Failure, PageBuilder, Server, lock_state};
use crate::capabilities::{Capabilities, Class, ClockAuthority, Fairness, Finding, LossDetection, TokenKind};
use crate::error::Error;
use crate::options::Options;
use crate::url::ServerUrl;
use crate::view::{ForcedRelease, LockPage, LockState};

pub(crate) static CAPABILITIES: Capabilities = Capabilities {
    engine: super::ZOOKEEPER.name,
    prefix: super::ZOOKEEPER.prefixes[0],
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
    /// `user:password`
    account: Option<String>,
    /// The parent of the nodes of all locks.
    root: String,
    owner: String,
    connect_timeout: Duration,
    connections: Connections,
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
        connections: Connections::default(),
    };
    zookeeper.connect_first(options.ttl).await?;
    Ok(sessions::start(zookeeper, options))
}

impl Zookeeper {
    /// The ACLs of our nodes: only the same user, or everybody without a login.
    fn acls(&self) -> Acls<'static> {
        if self.account.is_some() { Acls::creator_all() } else { Acls::anyone_all() }
    }

    /// Converts an error of ZooKeeper.
    fn failed(&self, error: &ZkError) -> Failure {
        match error {
            ZkError::SessionExpired | ZkError::SessionMoved | ZkError::ClientClosed => Failure::Gone,
            ZkError::NoAuth => Failure::Refused(Error::Forbidden(
                format!(
                    "{} denies access to nodes below {}: log in with zookeeper://user:password@host:port, or change the ACLs",
                    self.address(),
                    self.root
                )
                .into(),
            )),
            ZkError::AuthFailed => Failure::Refused(Error::Unauthenticated(
                format!("{} rejects the user or the password: check the URL", self.address()).into(),
            )),
            ZkError::QuotaExceeded => Failure::Refused(Error::Limit(
                format!("a quota of {} is exhausted: increase it, or use fewer locks", self.address()).into(),
            )),
            ZkError::BadArguments(why) => Failure::Refused(Error::invalid(format!("ZooKeeper rejects the request: {why}"))),
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
        self.connections.close_spare().await;
    }
}

impl Recipe for Zookeeper {
    type Session = Arc<Connection>;

    async fn open(&self, ttl: Duration, _: Duration) -> Result<Opened<Arc<Connection>>, Failure> {
        self.open_session(ttl).await
    }

    async fn renew(&self, connection: &Arc<Connection>) -> Result<(), Failure> {
        let client = connection.client()?;
        client.sync(&self.root).await.map_err(|error| self.failed(&error))
    }

    async fn suspended(&self, connection: &Arc<Connection>) {
        connection.interrupted().await;
    }

    async fn close_session(&self, connection: &Arc<Connection>) -> Result<(), Failure> {
        connection.close().await;
        Ok(())
    }

    async fn enter(
        &self,
        connection: &Arc<Connection>,
        ticket: &Ticket,
        mode: Try,
    ) -> Result<Entered, Failure> {
        self.enter_queue(&connection.client()?, ticket, mode).await
    }

    async fn wait(&self, connection: &Arc<Connection>, ticket: &Ticket) -> Result<Option<u64>, Failure> {
        self.wait_for_turn(&connection.client()?, ticket).await
    }

    async fn leave(&self, connection: &Arc<Connection>, ticket: &Ticket) -> Result<bool, Failure> {
        self.leave_queue(&connection.client()?, ticket).await
    }

    async fn taken_away(&self, connection: &Arc<Connection>, ticket: &Ticket) -> Result<(), Failure> {
        self.wait_for_loss(&connection.client()?, ticket).await
    }
}
