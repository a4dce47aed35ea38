//! A rate limiter shared by all instances.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smol_str::SmolStr;

use crate::clock::Moment;
use crate::error::Error;
use crate::fencing::{Fenced, Fencing};
use crate::keeper::Keeper;

/// Rate limiter shared by all clients that use its name: together they do not exceed its rate.
///
/// All clients must use the same rate and burst.
///
/// ```no_run
/// # use lockkeeper::prelude::*;
/// # async fn example(keeper: Keeper) -> Result<(), lockkeeper::Error> {
/// let mails = keeper.limiter("mails", 10.0, 20);
/// mails.take(1).await?; // waits for its turn
/// if let Err(wait) = mails.try_take(1).await? {
///     println!("retry in {wait:?}");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Limiter<F: Fencing = Fenced> {
    keeper: Keeper<F>,
    name: SmolStr,
    rate_per_s: f64,
    burst: u64,
    batch: u64,
    local: Arc<Mutex<Local>>,
}

/// Permits taken in advance.
#[derive(Debug, Default)]
struct Local {
    left: u64,
    good_until: Moment,
    /// The engine grants no permits before this moment.
    closed_until: Moment,
}

/// The answer of a limiter: taken, or how long to wait before the next try.
pub(crate) type Taken = Result<(), Duration>;

impl<F: Fencing> Limiter<F> {
    pub(crate) fn new(keeper: Keeper<F>, name: SmolStr, rate_per_s: f64, burst: u64) -> Limiter<F> {
        Limiter { keeper, name, rate_per_s, burst, batch: 1, local: Arc::default() }
    }

    /// Takes this many permits per request and hands them out locally: fewer requests, but less exact. Default: 1, which is
    /// exact.
    ///
    /// Each instance may exceed a burst by up to `permits`. Permits that are not used within the time in which the rate
    /// yields one batch expire. With N instances, the rate over any interval is exact to within N x `permits`. Clones of a
    /// limiter share their batch. At most the burst.
    pub fn local_batch(mut self, permits: u64) -> Self {
        self.batch = permits.clamp(1, self.burst.max(1));
        self
    }

    /// Takes permits if all are available now; otherwise returns how long to wait before the next try.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `permits` exceeds the burst. If the engine's answer is lost, the request is retried and may
    /// count twice, so the rate is never exceeded.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have taken them.
    pub async fn try_take(&self, permits: u64) -> Result<Result<(), Duration>, Error> {
        let now = Moment::now();
        {
            let mut local = self.local();
            if local.closed_until > now {
                return Ok(Err(local.closed_until.since(now)));
            }
            if local.good_until < now {
                local.left = 0;
            }
            if local.left >= permits {
                local.left -= permits;
                return Ok(Ok(()));
            }
        }
        let wanted = permits.max(self.batch.min(self.burst));
        let taken = self.request(wanted).await?;
        let taken = match taken {
            // A whole batch is not available; the permits needed now may be.
            Err(_) if wanted > permits => self.request(permits).await?.map(|()| 0),
            other => other.map(|()| wanted - permits),
        };
        let mut local = self.local();
        match taken {
            Ok(more) => {
                if more > 0 {
                    local.left += more;
                    local.good_until =
                        Moment::now().plus(Duration::from_secs_f64(self.batch as f64 / self.rate_per_s));
                }
                Ok(Ok(()))
            }
            Err(wait) => {
                if self.batch > 1 {
                    local.closed_until = Moment::now().plus(wait);
                }
                Ok(Err(wait))
            }
        }
    }

    /// Takes permits, and waits until they are available. Waiters have no order: each retries on its own.
    ///
    /// # Errors
    ///
    /// As [`try_take`](Limiter::try_take).
    ///
    /// # Cancel safety
    ///
    /// As [`try_take`](Limiter::try_take).
    pub async fn take(&self, permits: u64) -> Result<(), Error> {
        loop {
            match self.try_take(permits).await? {
                Ok(()) => return Ok(()),
                Err(wait) => tokio::time::sleep(wait).await,
            }
        }
    }

    async fn request(&self, permits: u64) -> Result<Taken, Error> {
        self.keeper.shared.engine.take_rate(&self.name, permits, self.rate_per_s, self.burst).await
    }

    fn local(&self) -> std::sync::MutexGuard<'_, Local> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
