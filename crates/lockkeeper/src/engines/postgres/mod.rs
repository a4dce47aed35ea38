//! Advisory locks of PostgreSQL.
//!
//! **Recipe.** A name becomes a number of 64 bits (`hashtextextended(name, 0)`, so that `psql` can take the same lock), and
//! the name is stored beside the number: a collision is an error, never a shared lock.
//!
//! - *Session level*, the default: `pg_advisory_lock` on a connection that is dedicated to this holder and watched. Its
//!   loss is the loss of the lock, and the other way round: `idle_session_timeout` makes the server end a connection
//!   that was silent for a time to live, so a holder that is paused loses its lock as with every other engine.
//! - *Transaction level*, `?level=transaction`: `pg_advisory_xact_lock` in a transaction that stays open while it is held.
//!   This is right behind a pooler in transaction mode. A transaction that stays open for hours keeps the server from
//!   cleaning up: use it for short work.
//!
//! Waiting is done in the server's own queue; of all who wait in a keeper, one waits there.
//!
//! What a leader stands for is a row of a table, with its token: it counts while the holder has that token. At
//! transaction level there are no elections, because nobody else would see the row before the transaction ends.
//!
//! **Token.** `nextval` of a sequence in the same database, drawn in the statement that takes the lock: see `token.rs`.
//!
//! **Whose clock.** The server's; the holder's own, counted from when it sent the last statement, ends earlier.
//!
//! **What it does NOT promise.**
//! - A fail-over to a standby that was not synchronous forgets the last numbers of the sequence, and all locks at once:
//!
//! ```text
//!  A          primary            standby              B
//!  |--take--->| token 41
//!  |<-- 41 ---|  . . . not yet copied: 40 . . .
//!  |          X crash
//!  |                             promoted: no locks, token 40
//!  |                             |<--------take-------|
//!  |                             |--------- 41 ------>|   the same number twice
//! ```
//!
//!   Set `synchronous_standby_names`, or fence by more than the number.
//! - Before PostgreSQL 14 there is no `idle_session_timeout`: a paused holder keeps its lock until its connection breaks.
//! - Behind a pooler in transaction mode, session level is refused: the pooler would hand the lock to others.

mod lock;
mod pooler;
mod session;
mod token;
mod view;
mod wait;

use std::time::{Duration, UNIX_EPOCH};

use self::lock::Lease;
use self::session::{HAS_IDLE_SESSION_TIMEOUT, Sessions};
use super::AcquireRequest;
use super::runtime::leases::{self, LeaseEngine, OwnerId, Recipe, Taken};
use super::runtime::{Failure, Server};
use super::weak_spots::clock_off;
use crate::capabilities::{Capabilities, Class, ClockAuthority, Fairness, Finding, LossDetection, TokenKind};
use crate::error::Error;
use crate::options::Options;
use crate::url::ServerUrl;
use crate::view::{ForcedRelease, LockState};

pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    engine: "postgres",
    scheme: "postgres://",
    class: Class::Correctness,
    token: TokenKind::Durable,
    token_source: "a sequence in the same database",
    clock: ClockAuthority::Server,
    fairness: Fairness::FifoInKeeper,
    loss: LossDetection::Session,
    shared: true,
    counted: false,
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

/// What a transaction writes, others see at its end: nobody would know who leads.
const IN_TRANSACTIONS: Capabilities = Capabilities { elections: false, ..CAPABILITIES };

/// What a lock belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Session,
    Transaction,
}

/// Locks in a database.
pub(crate) struct PostgresStore {
    sessions: Sessions,
    owner: String,
}

pub(crate) async fn connect(url: ServerUrl, options: &Options) -> Result<LeaseEngine<PostgresStore>, Error> {
    let level = match url.option("level") {
        None | Some("session") => Level::Session,
        Some("transaction") => Level::Transaction,
        Some(other) => {
            return Err(Error::invalid(format!(
                "level={other} is not possible: write level=session or level=transaction"
            )));
        }
    };
    let sessions = Sessions::connect(&url, level, options).await?;
    if level == Level::Session && pooler::is_in_between(&sessions).await? {
        return Err(pooler::refused());
    }
    token::set_up(&sessions).await?;
    // The server cuts names of connections at 63 bytes; only letters that cannot be cut in half are sent.
    let owner = options.owner.chars().filter(char::is_ascii_graphic).collect();
    Ok(leases::start(PostgresStore { sessions, owner }, options))
}

impl Server for PostgresStore {
    fn capabilities(&self) -> &'static Capabilities {
        match self.sessions.level {
            Level::Session => &CAPABILITIES,
            Level::Transaction => &IN_TRANSACTIONS,
        }
    }

    fn address(&self) -> String {
        format!("PostgreSQL at {}", self.sessions.address)
    }

    async fn examine(&self) -> Result<Vec<Finding>, Failure> {
        Ok(self.findings().await?)
    }

    async fn who(&self, lock: &str) -> Result<LockState, Failure> {
        Ok(view::who(&self.sessions, lock).await?)
    }

    async fn force_release(&self, lock: &str) -> Result<ForcedRelease, Failure> {
        Ok(view::force_release(&self.sessions, lock).await?)
    }

    async fn close(&self) {
        self.sessions.close();
    }
}

impl Recipe for PostgresStore {
    type Lease = Lease;

    const WAITS_ON_SERVER: bool = true;

    async fn take(
        &self,
        request: &AcquireRequest,
        _owner: &OwnerId,
        wait: Duration,
    ) -> Result<Taken<Lease>, Failure> {
        Ok(lock::take(&self.sessions, request, wait, &self.owner).await?)
    }

    async fn renew(&self, lease: &Lease, _ttl: Duration) -> Result<bool, Failure> {
        Ok(lock::renew(&self.sessions, lease).await?)
    }

    async fn release(&self, lease: &Lease) -> Result<bool, Failure> {
        Ok(lock::release(&self.sessions, lease).await?)
    }

    /// A take that was given up has closed its connection.
    async fn roll_back(&self, _request: &AcquireRequest, _owner: &OwnerId) -> Result<(), Failure> {
        Ok(())
    }
}

impl PostgresStore {
    async fn findings(&self) -> Result<Vec<Finding>, Error> {
        let session = self.sessions.take().await?;
        let sql =
            "SELECT extract(epoch FROM clock_timestamp())::bigint, current_setting('synchronous_commit'),
            current_setting('fsync'), pg_is_in_recovery(),
            (SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async')";
        let row = self.sessions.soon(session.client.query_typed_one(sql, &[])).await?;
        self.sessions.put_back(&session);
        let address = &self.sessions.address;
        let mut findings = Vec::new();
        if self.sessions.version < HAS_IDLE_SESSION_TIMEOUT && self.sessions.level == Level::Session {
            findings.push(Finding::new(
                "no-idle-session-timeout",
                format!("PostgreSQL at {address} is older than 14: a holder that is paused keeps its lock"),
                "upgrade, or use ?level=transaction",
            ));
        }
        if self.sessions.level == Level::Transaction && pooler::is_in_between(&self.sessions).await? {
            findings.push(Finding::new(
                "pooler",
                format!("a pooler in transaction mode answers at {address}: each lock keeps one of its connections"),
                "make its pool larger than the number of locks held at a time, or connect to PostgreSQL itself",
            ));
        }
        let theirs = UNIX_EPOCH + Duration::from_secs(u64::try_from(row.get::<_, i64>(0)).unwrap_or(0));
        findings.extend(clock_off(&format!("PostgreSQL at {address}"), theirs));
        if row.get::<_, &str>(1) == "off" || row.get::<_, &str>(2) == "off" {
            findings.push(Finding::new(
                "no-persistence",
                format!("PostgreSQL at {address} answers before it has written (synchronous_commit or fsync is off): after a crash a token can be given again"),
                "set both to on",
            ));
        }
        if row.get::<_, bool>(3) {
            findings.push(Finding::new(
                "replica",
                format!("PostgreSQL at {address} is a standby: it takes no locks"),
                "name its primary",
            ));
        }
        if row.get::<_, i64>(4) > 0 {
            findings.push(Finding::new(
                "asynchronous-replicas",
                format!("PostgreSQL at {address} has standbys that follow it with a delay: after a fail-over a token can be given again"),
                "set synchronous_standby_names",
            ));
        }
        Ok(findings)
    }
}
