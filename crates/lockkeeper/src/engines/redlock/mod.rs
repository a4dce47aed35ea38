//! Redlock: locks in a majority of several independent Redis instances.
//!
//! # The recipe
//!
//! The same key with the same 20 random bytes is set on all instances concurrently, each with a short timeout. The lock is held
//! if a majority granted it and part of the time to live is left. Otherwise the key is released on *all* instances, including
//! those that did not answer, where the release is retried for a while. A renewal succeeds if a majority still has the key.
//! Renewals also set the key again on instances that lost it, so that successive restarts do not reduce the majority.
//!
//! # The token
//!
//! None. There is no number that all instances agree on, so nothing can be fenced: a keeper of this engine is
//! `Keeper<Unfenced>`, and code that uses a token does not compile.
//!
//! # Whose clock decides
//!
//! Each instance expires keys by its own clock. The guard's deadline is counted from before the first request, less 1 % and
//! 2 ms. This is correct only if no clock jumps.
//!
//! # What it does NOT promise
//!
//! A single holder, if a clock jumps or an instance loses its data:
//!
//! ```text
//!        r1   r2   r3   r4   r5
//!  A     x    x    x    -    -      A holds the lock on r1, r2, r3
//!                  the clock of r3 is set forward: A's key expires there
//!  B     -    -    x    x    x      B holds the lock on r3, r4, r5
//!  A and B both hold the lock, and neither has a token that the resource could check.
//! ```
//!
//! A holder that is paused for longer than its time to live can still write when it resumes, and nothing can refuse the
//! write. Use this engine only for work that can safely be done twice.

mod lock;
mod session;
mod token;
mod wait;

use std::time::Duration;

use self::session::Instances;
use super::AcquireRequest;
use super::redis::lock::Lease;
use super::runtime::leases::{self, LeaseEngine, OwnerId, Recipe, Taken};
use super::runtime::{Failure, Server};
use crate::capabilities::{Capabilities, Class, ClockAuthority, Fairness, Finding, LossDetection};
use crate::error::Error;
use crate::options::Options;
use crate::url::ServerUrl;

pub(crate) static CAPABILITIES: Capabilities = Capabilities {
    engine: super::REDLOCK.name,
    prefix: super::REDLOCK.prefixes[0],
    class: Class::Efficiency,
    token: token::KIND,
    token_source: "",
    clock: ClockAuthority::EachServer,
    fairness: Fairness::FifoInKeeper,
    loss: LossDetection::Renewal,
    shared: false,
    counted: false,
    several: false,
    lock_delay: false,
    who: false,
    force_release: false,
    elections: false,
    scopes: false,
    rates: false,
    values: false,
    ttl_min: Duration::from_millis(lockkeeper_core::limits::TTL_MS_MIN),
    ttl_max: Duration::from_millis(lockkeeper_core::limits::TTL_MS_MAX),
};

/// Locks in a majority of several Redis instances.
pub(crate) struct RedlockStore {
    instances: Instances,
}

pub(crate) async fn connect(url: ServerUrl, options: &Options) -> Result<LeaseEngine<RedlockStore>, Error> {
    let instances = Instances::connect(&url, options).await?;
    Ok(leases::start(RedlockStore { instances }, options))
}

impl Server for RedlockStore {
    fn capabilities(&self) -> &'static Capabilities {
        &CAPABILITIES
    }

    fn address(&self) -> String {
        format!("Redlock at {}", self.instances.addresses())
    }

    async fn examine(&self) -> Result<Vec<Finding>, Failure> {
        Ok(session::examine(&self.instances).await?)
    }

    async fn close(&self) {
        self.instances.finish_releases().await;
    }
}

impl Recipe for RedlockStore {
    type Lease = Lease;

    async fn take(
        &self,
        request: &AcquireRequest,
        owner: &OwnerId,
        _wait: Duration,
    ) -> Result<Taken<Lease>, Failure> {
        Ok(lock::take(&self.instances, request, owner).await?)
    }

    async fn renew(&self, lease: &Lease, ttl: Duration) -> Result<bool, Failure> {
        Ok(lock::renew(&self.instances, lease, ttl).await?)
    }

    async fn release(&self, lease: &Lease) -> Result<bool, Failure> {
        Ok(lock::release_with_retries(&self.instances, lease).await?)
    }

    async fn roll_back(&self, request: &AcquireRequest, owner: &OwnerId) -> Result<(), Failure> {
        let lease = Lease { owner: owner.clone(), keys: super::redis::lock::keys(request) };
        self.release(&lease).await.map(|_| ())
    }
}
