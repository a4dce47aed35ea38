//! Locks in PostgreSQL: advisory locks.
//!
//! # The recipe
//!
//! The key of a lock is a 64-bit hash of its name (`hashtextextended(name, 0)`, so that `psql` can take the same lock). The name
//! is stored with the key in a table, so a hash collision is an error and never one lock for two names.
//!
//! - *Session level*, the default: `pg_advisory_lock` on a connection dedicated to this holder. If the connection is lost, the
//!   lock is lost. `idle_session_timeout` makes the server close a connection that is idle for a time to live, so a paused
//!   holder loses its lock, as with every other engine.
//! - *Transaction level*, `?level=transaction`: `pg_advisory_xact_lock` in a transaction that is open while the lock is held.
//!   It works behind a pooler in transaction mode. A long transaction blocks vacuum: use this level for short work.
//!
//! Waiters use the server's own queue, one connection for each keeper.
//!
//! The value of an elected leader is a row in a table, with the leader's token, and is valid while the holder has this token.
//! There are no elections at transaction level, because the row would be invisible to others until the transaction ends.
//!
//! # The token
//!
//! `nextval` of a sequence in the same database, drawn by the statement that takes the lock: see `token.rs`.
//!
//! # Whose clock decides
//!
//! The server's. The guard uses the holder's clock, counted from when the last statement was sent, and ends earlier.
//!
//! # What it does NOT promise
//!
//! That a fail-over to an asynchronous standby keeps the latest tokens. It also releases all locks:
//!
//! ```text
//!  A          primary            standby              B
//!  |--take--->| token 41
//!  |<-- 41 ---|  . . . not yet replicated: 40 . . .
//!  |          X crash
//!  |                             promoted: no locks, token 40
//!  |                             |<--------take-------|
//!  |                             |--------- 41 ------>|   the same token twice
//! ```
//!
//! - Set `synchronous_standby_names`, or compare more than the token at the resource.
//! - Before PostgreSQL 14 there is no `idle_session_timeout`: a paused holder keeps its lock until its connection is lost.
//! - Behind a pooler in transaction mode, session level is refused, because the pooler would pass the lock on to other clients.

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

pub(crate) static CAPABILITIES: Capabilities = Capabilities {
    engine: super::POSTGRES.name,
    prefix: super::POSTGRES.prefixes[0],
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

/// Without elections: the value of a leader would be invisible to others until its transaction ends.
static TRANSACTION_CAPABILITIES: Capabilities = Capabilities { elections: false, ..CAPABILITIES };

/// The owner of an advisory lock: the session, or the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Session,
    Transaction,
}

/// Locks in a PostgreSQL database.
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
                "\"{other}\" is not a level: write level=session or level=transaction"
            )));
        }
    };
    let sessions = Sessions::connect(&url, level, options).await?;
    if level == Level::Session && pooler::is_detected(&sessions).await? {
        return Err(pooler::refused());
    }
    token::create_schema(&sessions).await?;
    // The server truncates application names to 63 bytes: ASCII characters cannot be cut in half.
    let owner = options.owner.chars().filter(char::is_ascii_graphic).collect();
    Ok(leases::start(PostgresStore { sessions, owner }, options))
}

impl Server for PostgresStore {
    fn capabilities(&self) -> &'static Capabilities {
        match self.sessions.level {
            Level::Session => &CAPABILITIES,
            Level::Transaction => &TRANSACTION_CAPABILITIES,
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

    /// There is nothing to do: a take that was dropped has closed its connection.
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
        let row = self.sessions.with_timeout(session.client.query_typed_one(sql, &[])).await?;
        self.sessions.put_back(&session);
        let address = &self.sessions.address;
        let mut findings = Vec::new();
        if self.sessions.version < HAS_IDLE_SESSION_TIMEOUT && self.sessions.level == Level::Session {
            findings.push(Finding::new(
                "no-idle-session-timeout",
                format!(
                    "PostgreSQL at {address} is older than 14 and has no idle_session_timeout: a paused holder keeps its lock"
                ),
                "upgrade, or use ?level=transaction",
            ));
        }
        if self.sessions.level == Level::Transaction && pooler::is_detected(&self.sessions).await? {
            findings.push(Finding::new(
                "pooler",
                format!(
                    "the server at {address} is a pooler in transaction mode: each held lock occupies one connection of its pool"
                ),
                "make the pool larger than the number of locks held at a time, or connect to PostgreSQL directly",
            ));
        }
        let theirs = UNIX_EPOCH + Duration::from_secs(u64::try_from(row.get::<_, i64>(0)).unwrap_or(0));
        findings.extend(clock_off(&format!("PostgreSQL at {address}"), theirs));
        if row.get::<_, &str>(1) == "off" || row.get::<_, &str>(2) == "off" {
            findings.push(Finding::new(
                "no-persistence",
                format!(
                    "PostgreSQL at {address} answers before its writes are on disk (synchronous_commit or fsync is off): after a \
                     crash, a token can be issued twice"
                ),
                "set synchronous_commit and fsync to on",
            ));
        }
        if row.get::<_, bool>(3) {
            findings.push(Finding::new(
                "replica",
                format!("PostgreSQL at {address} is a standby, which cannot grant locks"),
                "connect to its primary",
            ));
        }
        if row.get::<_, i64>(4) > 0 {
            findings.push(Finding::new(
                "asynchronous-replicas",
                format!(
                    "PostgreSQL at {address} has asynchronous standbys: after a fail-over, a token can be issued twice"
                ),
                "set synchronous_standby_names",
            ));
        }
        Ok(findings)
    }
}
