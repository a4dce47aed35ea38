//! Redlock: several Redis that know nothing of each other, and a majority decides.
//!
//! **Recipe.** The same key with the same 20 random bytes is set on all instances at once, each with a short time-out. It
//! is held if a majority answered yes and some of the time to live is left; otherwise it is given back on *all* of
//! them, also on those that did not answer, which are asked again for a while. A renewal counts on a majority that still has it. An instance that came back
//! empty is given the key again by the next renewal, so that restarts do not wear the majority down.
//!
//! **Token.** None. There is no number that all instances agree on, so nothing can be fenced: a keeper of this engine is
//! `Keeper<Unfenced>`, and code that asks for a token does not compile.
//!
//! **Whose clock.** Each instance's own. The holder counts its own deadline from before the first request, less 1 % and 2
//! ms. That is right only while no clock jumps.
//!
//! **What it does NOT promise.** That there is one holder when a clock jumps or an instance forgets:
//!
//! ```text
//!        r1   r2   r3   r4   r5
//!  A     x    x    x    -    -      A holds it with r1, r2, r3
//!                  clock of r3 is set forward: A's key is gone there
//!  B     -    -    x    x    x      B holds it with r3, r4, r5
//!  A and B both hold the lock, and neither has a token by which the resource could tell.
//! ```
//!
//! A holder that is paused for longer than its time to live writes when it wakes, and nothing can refuse it. Use it where
//! doing the work twice does no harm.

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

pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    engine: "redlock",
    scheme: "redlock://",
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

/// Locks in a majority of several Redis.
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
        Ok(lock::release_for_good(&self.instances, lease).await?)
    }

    async fn roll_back(&self, request: &AcquireRequest, owner: &OwnerId) -> Result<(), Failure> {
        let lease = Lease { owner: owner.clone(), keys: super::redis::lock::keys(request) };
        self.release(&lease).await.map(|_| ())
    }
}
