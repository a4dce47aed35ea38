//! Locks in a single Redis.
//!
//! # The recipe
//!
//! A lock is a key with 20 random bytes and a time to live, set only if it does not exist (`SET NX PX`). Renewals and releases
//! are scripts that compare these bytes, so a former holder cannot affect the lock of its successor. A shared or counted lock
//! is a hash with an entry for each holder. Several locks are taken by one script. A release is published, and wakes one
//! waiter of each keeper; waiters also poll at random intervals, because a published message can be lost.
//!
//! # The token
//!
//! One counter for the whole database, incremented by the script that grants: see `token.rs`. It is *volatile*: it counts as
//! a fencing token only with `accept_volatile_tokens`.
//!
//! # Whose clock decides
//!
//! Redis expires leases by its own clock. The guard uses the holder's clock, counted from when the renewal was sent, and ends
//! earlier.
//!
//! # What it does NOT promise
//!
//! That a lock survives the loss of Redis. Replication is asynchronous, and data that was not persisted is lost in a crash:
//!
//! ```text
//!  A            primary          replica         B
//!  |--take----->| A holds
//!  |<--granted--|   . . . not yet replicated . . .
//!  |            X crash
//!  |                             promoted
//!  |                             |<------take----|
//!  |                             |----granted--->|
//!  A and B both hold the lock. B's token is greater only if the replica's counter or clock was not behind.
//! ```
//!
//! - A restart without `appendonly yes` and `appendfsync always` has the same effect. `lockkeeper doctor` checks both.
//! - A holder that is paused for longer than its time to live can still write when it resumes, unless the resource checks the
//!   token.

pub(crate) mod examine;
pub(crate) mod lock;
mod rate;
pub(crate) mod session;
mod token;
mod view;
mod wait;

use std::time::Duration;

use self::lock::Lease;
use self::session::Instance;
use self::wait::Subscriber;
use super::runtime::leases::{self, LeaseEngine, OwnerId, Recipe, ReleaseEvents, Taken};
use super::runtime::{Failure, Server};
use super::{AcquireRequest, owner_with_value};
use crate::capabilities::{Capabilities, Class, ClockAuthority, Fairness, Finding, LossDetection, TokenKind};
use crate::error::Error;
use crate::options::Options;
use crate::url::ServerUrl;
use crate::view::{ForcedRelease, LockPage, LockState};

pub(crate) static CAPABILITIES: Capabilities = Capabilities {
    engine: super::REDIS.name,
    prefix: super::REDIS.prefixes[0],
    class: Class::Efficiency,
    token: TokenKind::Volatile,
    token_source: "a counter in Redis, never below its clock",
    clock: ClockAuthority::Server,
    fairness: Fairness::FifoInKeeper,
    loss: LossDetection::Renewal,
    shared: true,
    counted: true,
    several: true,
    lock_delay: false,
    who: true,
    force_release: true,
    elections: true,
    scopes: false,
    rates: true,
    values: false,
    ttl_min: Duration::from_millis(lockkeeper_core::limits::TTL_MS_MIN),
    ttl_max: Duration::from_millis(lockkeeper_core::limits::TTL_MS_MAX),
};

/// Locks in a single Redis.
pub(crate) struct RedisStore {
    instance: Instance,
    subscriber: Subscriber,
    owner: String,
}

pub(crate) async fn connect(url: ServerUrl, options: &Options) -> Result<LeaseEngine<RedisStore>, Error> {
    let [host] = url.hosts.as_slice() else {
        return Err(Error::invalid(
            "redis:// takes a single host: name one, or use redlock:// for several independent instances",
        ));
    };
    let client = Instance::client(&url, host)?;
    let instance =
        Instance::connect(client.clone(), host, options.connect_timeout, options.request_timeout).await?;
    let store = RedisStore { instance, subscriber: Subscriber::new(client), owner: options.owner.clone() };
    Ok(leases::start(store, options))
}

impl Server for RedisStore {
    fn capabilities(&self) -> &'static Capabilities {
        &CAPABILITIES
    }

    fn address(&self) -> String {
        format!("Redis at {}", self.instance.address)
    }

    async fn examine(&self) -> Result<Vec<Finding>, Failure> {
        Ok(examine::examine(&self.instance, true).await?)
    }

    async fn who(&self, lock: &str) -> Result<LockState, Failure> {
        Ok(view::who(&self.instance, lock).await?)
    }

    async fn locks(&self, prefix: &str, limit: usize, after: &str) -> Result<LockPage, Failure> {
        Ok(view::locks(&self.instance, prefix, limit, after).await?)
    }

    async fn force_release(&self, lock: &str) -> Result<ForcedRelease, Failure> {
        Ok(token::force_release(&self.instance, lock).await?)
    }

    async fn take_rate(
        &self,
        limiter: &str,
        permits: u64,
        rate_per_s: f64,
        burst: u64,
    ) -> Result<crate::limiter::Taken, Failure> {
        Ok(rate::take(&self.instance, limiter, permits, rate_per_s, burst).await?)
    }

    async fn close(&self) {
        self.subscriber.stop();
    }
}

impl Recipe for RedisStore {
    type Lease = Lease;

    async fn take(
        &self,
        request: &AcquireRequest,
        owner: &OwnerId,
        _wait: Duration,
    ) -> Result<Taken<Lease>, Failure> {
        let owner_label = owner_with_value(request.value.as_ref(), &self.owner);
        Ok(lock::take(&self.instance, request, owner, &owner_label).await?)
    }

    async fn renew(&self, lease: &Lease, ttl: Duration) -> Result<bool, Failure> {
        Ok(lock::renew(&self.instance, lease, ttl).await?)
    }

    async fn release(&self, lease: &Lease) -> Result<bool, Failure> {
        Ok(lock::release(&self.instance, lease).await?)
    }

    async fn roll_back(&self, request: &AcquireRequest, owner: &OwnerId) -> Result<(), Failure> {
        let lease = Lease { owner: owner.clone(), keys: lock::keys(request) };
        self.release(&lease).await.map(|_| ())
    }

    fn subscribe(&self, request: &AcquireRequest) -> ReleaseEvents {
        self.subscriber.subscribe(request)
    }
}
