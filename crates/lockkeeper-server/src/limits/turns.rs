//! Turns on the serving thread. All tasks of a node run on one thread, so long work delays the renewals of other clients.
//! Long work is therefore done for one caller at a time, and everything else is served in between:
//!
//! - a read whose cost grows with the table ([`Lanes::read`]); after it the lane rests for as long as the read took, so that
//!   reads use at most half of the thread;
//! - the next turn of a stream that has used up its last one ([`Lanes::bulk`]).
//!
//! Each identity has at most one caller in each lane, so that many connections of one do not delay those of another.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// A read shorter than this needs no rest.
const REST_THRESHOLD: Duration = Duration::from_micros(200);
/// The longest rest after one read.
const REST_MAX: Duration = Duration::from_millis(50);

/// Lanes in which one caller at a time has its turn, first come, first served.
#[derive(Debug, Clone)]
pub(crate) struct Lanes {
    reads: Arc<Semaphore>,
    bulk: Arc<Semaphore>,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes { reads: Arc::new(Semaphore::new(1)), bulk: Arc::new(Semaphore::new(1)) }
    }
}

/// The right to work now. Dropping it passes the turn on.
#[derive(Debug)]
pub(crate) struct TurnPermit {
    lanes: Option<[OwnedSemaphorePermit; 2]>,
    began: Instant,
    rests: bool,
}

impl Lanes {
    /// Waits for the turn of a read, first in the lane of its identity and then in the common one.
    pub(crate) fn read(identity: &Lanes, all: &Lanes) -> impl Future<Output = TurnPermit> + Send + use<> {
        permit(identity.reads.clone(), all.reads.clone(), true)
    }

    /// Waits for the turn of a stream that has used up its last one.
    pub(crate) fn bulk(identity: &Lanes, all: &Lanes) -> impl Future<Output = TurnPermit> + Send + use<> {
        permit(identity.bulk.clone(), all.bulk.clone(), false)
    }
}

async fn permit(identity: Arc<Semaphore>, all: Arc<Semaphore>, rests: bool) -> TurnPermit {
    let lanes = async {
        Ok::<_, tokio::sync::AcquireError>([identity.acquire_owned().await?, all.acquire_owned().await?])
    };
    // The semaphores are never closed.
    let lanes = lanes.await.ok();
    TurnPermit { lanes, began: Instant::now(), rests }
}

impl Drop for TurnPermit {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let lanes = self.lanes.take();
        if !self.rests || took < REST_THRESHOLD {
            return;
        }
        // The lane stays occupied while it rests.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(took.min(REST_MAX)).await;
                drop(lanes);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_read_runs_at_a_time_and_the_lane_rests_after_it() {
        let (all, one, other) = (Lanes::default(), Lanes::default(), Lanes::default());
        let first = Lanes::read(&one, &all).await;
        let mut second = Box::pin(Lanes::read(&one, &all));
        let mut third = Box::pin(Lanes::read(&other, &all));
        assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        // Streams have a lane of their own.
        assert!(Lanes::bulk(&one, &all).now_or_never().is_some());
        tokio::time::advance(Duration::from_millis(10)).await;
        let ended = Instant::now();
        drop(first);
        // Another identity does not wait behind the second read of the first one.
        let third = third.await;
        assert!(ended.elapsed() >= Duration::from_millis(10), "after a rest");
        assert!((&mut second).now_or_never().is_none());
        drop(third);
        second.await;
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_waiter_does_not_block_the_lane() {
        let (all, one) = (Lanes::default(), Lanes::default());
        let first = Lanes::bulk(&one, &all).await;
        let mut gone = Box::pin(Lanes::bulk(&one, &all));
        assert!((&mut gone).now_or_never().is_none());
        drop((gone, first));
        assert!(Lanes::bulk(&one, &all).now_or_never().is_some());
    }
}
