//! The leader's lease (S3): the time in which it can be sure that no other leader exists.
//!
//! A member that acknowledges a message of the leader promises not to vote for another leader for some time. It sends this
//! promise with the acknowledgement, because members may have different timing while it is changed. The promise counts from
//! the moment at which the leader SENT the message. Until a majority's promises end, less the clock drift, this leader is the
//! only one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_core::mutation::{self, Mutation};
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use openraft::metrics::RaftMetrics;
use openraft::type_config::alias::WatchReceiverOf;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use super::acks::{Ack, Acks, safe_part};
use super::types::TypeConfig;

/// Tolerance for reading two clocks of a machine one after the other.
const READ_TOLERANCE: Duration = Duration::from_millis(5);

/// The leader's own promise, longer than any follower's.
const OWN_PROMISE: Duration = Duration::from_secs(3_600);

/// Lease of the leader: decides whether it may answer from memory, without asking a majority.
pub(crate) struct Lease {
    metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    acks: Arc<Acks>,
    /// This node's own promise as a follower.
    own_promise: Duration,
    suspend: Mutex<Suspend>,
}

/// Suspend time of the machine at the last check.
#[derive(Debug)]
struct Suspend {
    total: Duration,
    resumed: Option<Instant>,
}

impl Lease {
    pub(crate) fn new(
        metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
        acks: Arc<Acks>,
        own_promise: Duration,
    ) -> Lease {
        let suspend = Suspend { total: suspended_time(), resumed: None };
        Lease { metrics, acks, own_promise, suspend: Mutex::new(suspend) }
    }

    /// Reports whether no other leader can exist now.
    pub(crate) fn is_valid(&self) -> bool {
        let now = Instant::now();
        let until = self.majority(now + OWN_PROMISE, |ack| {
            if mutation::is_on(Mutation::LeaseIgnoresPromise) {
                return ack.sent + safe_part(self.own_promise);
            }
            ack.promised_until
        });
        until.is_some_and(|until| now < until)
    }

    /// Returns the time since the last request that a majority has acknowledged was sent. `None` if this node does not lead or
    /// has no majority's acknowledgement yet.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let now = Instant::now();
        let acknowledged = self.majority(now, |ack| ack.sent)?;
        Some(now.saturating_duration_since(acknowledged))
    }

    /// Returns the moment that the acknowledgements of a majority reach. The leader itself reaches `of_leader`.
    fn majority(&self, of_leader: Instant, moment: impl Fn(&Ack) -> Instant) -> Option<Instant> {
        let metrics = self.metrics.borrow_watched();
        if metrics.state != ServerState::Leader {
            return None;
        }
        // The clock of `Instant` stops while the machine is suspended; the other members' clocks do not.
        let resumed = self.last_resume();
        let groups = metrics.membership_config.membership().get_joint_config();
        self.acks.majority((metrics.id, of_leader), metrics.vote, groups, |ack| {
            resumed.is_none_or(|resumed| ack.sent > resumed).then(|| moment(ack))
        })
    }

    fn last_resume(&self) -> Option<Instant> {
        let mut suspend = self.suspend.lock().unwrap_or_else(PoisonError::into_inner);
        let total = suspended_time();
        if total > suspend.total + READ_TOLERANCE {
            tracing::warn!(suspended = ?(total - suspend.total), "the machine was suspended");
            suspend.resumed = Some(Instant::now());
            suspend.total = total;
        }
        suspend.resumed
    }
}

/// Returns the total time that the machine was suspended since boot.
fn suspended_time() -> Duration {
    let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    let monotonic = read(ClockId::Monotonic);
    read(ClockId::Boottime).saturating_sub(monotonic)
}
