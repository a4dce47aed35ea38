//! A rate that all instances share.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smol_str::SmolStr;

use crate::clock::Moment;
use crate::error::Error;
use crate::fencing::{Fenced, Fencing};
use crate::keeper::Keeper;

/// A rate limiter by its name: all who name it, wherever they run, together get no more than its rate. All have to name the
/// same rate and burst.
///
/// ```no_run
/// # use lockkeeper::prelude::*;
/// # async fn example(keeper: Keeper) -> Result<(), lockkeeper::Error> {
/// let mails = keeper.limiter("mails", 10.0, 20);
/// mails.take(1).await?; // waits for its turn
/// if let Err(wait) = mails.try_take(1).await? {
///     println!("come back in {wait:?}");
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

/// What was taken in advance.
#[derive(Debug, Default)]
struct Local {
    left: u64,
    good_until: Moment,
    /// Nobody is served before this moment: so the engine has said.
    closed_until: Moment,
}

/// What a limiter answers: done, or when to come back.
pub(crate) type Taken = Result<(), Duration>;

impl<F: Fencing> Limiter<F> {
    pub(crate) fn new(keeper: Keeper<F>, name: SmolStr, rate_per_s: f64, burst: u64) -> Limiter<F> {
        Limiter { keeper, name, rate_per_s, burst, batch: 1, local: Arc::default() }
    }

    /// Take so many permits at once and hand them out here without asking: so many times fewer questions, and less exact.
    /// Each instance may serve up to `permits` too many within one burst, and what it does not use within the time that
    /// the rate needs for a batch is lost: with N instances the rate of any stretch is right to within N x `permits`.
    /// Clones of a limiter share their batch. At most the burst. Default: 1, which is exact.
    pub fn local_batch(mut self, permits: u64) -> Self {
        self.batch = permits.clamp(1, self.burst.max(1));
        self
    }

    /// Takes permits if they can be had now, all or none; otherwise says when to come back.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if more are wanted than the burst. If the answer of the engine is lost, the question is
    /// repeated, and may count twice: never too many are served.
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
        let taken = self.ask(wanted).await?;
        let taken = match taken {
            // A whole batch is not to be had: perhaps what is needed now is.
            Err(_) if wanted > permits => self.ask(permits).await?.map(|()| 0),
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

    /// Takes permits, and waits until they can be had. Who waits has no place in a line: it is served when it comes back in
    /// time.
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

    async fn ask(&self, permits: u64) -> Result<Taken, Error> {
        self.keeper.shared.engine.take_rate(&self.name, permits, self.rate_per_s, self.burst).await
    }

    fn local(&self) -> std::sync::MutexGuard<'_, Local> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
