//! The leader's lease (S3): for how long it can be sure that no other leader exists.
//!
//! A member that acknowledged a message of the leader votes for nobody else for a while after it: that is its promise, which it
//! sends with the acknowledgement, because members may have different timing while it is changed. The promise counts from the
//! moment at which the leader SENT the message. Until a majority's promises end, less what clocks may differ by, this leader is
//! the only one.

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

/// Tolerance for reading the two clocks of a machine one after the other.
const READ_TOLERANCE: Duration = Duration::from_millis(5);

/// The leader's own promise, longer than any follower's.
const OWN_PROMISE: Duration = Duration::from_secs(3_600);

/// Decides whether this leader may answer from memory, without asking a majority.
pub(crate) struct Lease {
    metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    acks: Arc<Acks>,
    /// This node's own promise as a follower.
    own_promise: Duration,
    sleep: Mutex<Sleep>,
}

/// The machine's suspend time as of the last check.
#[derive(Debug)]
struct Sleep {
    total: Duration,
    woke: Option<Instant>,
}

impl Lease {
    pub(crate) fn new(
        metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
        acks: Arc<Acks>,
        own_promise: Duration,
    ) -> Lease {
        let sleep = Sleep { total: slept(), woke: None };
        Lease { metrics, acks, own_promise, sleep: Mutex::new(sleep) }
    }

    /// Whether no other leader can exist now.
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

    /// How long ago a majority was last heard. `None` if this node does not lead, or nobody was heard yet.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let now = Instant::now();
        let acknowledged = self.majority(now, |ack| ack.sent)?;
        Some(now.saturating_duration_since(acknowledged))
    }

    /// The moment that the acknowledgements of a majority reach; the leader itself reaches `of_leader`.
    fn majority(&self, of_leader: Instant, moment: impl Fn(&Ack) -> Instant) -> Option<Instant> {
        let metrics = self.metrics.borrow_watched();
        if metrics.state != ServerState::Leader {
            return None;
        }
        // The clock of `Instant` stands still while the machine sleeps; the other members' clocks do not.
        let woke = self.woke();
        let groups = metrics.membership_config.membership().get_joint_config();
        self.acks.majority((metrics.id, of_leader), metrics.vote, groups, |ack| {
            woke.is_none_or(|woke| ack.sent > woke).then(|| moment(ack))
        })
    }

    fn woke(&self) -> Option<Instant> {
        let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        let total = slept();
        if total > sleep.total + READ_TOLERANCE {
            tracing::warn!(slept = ?(total - sleep.total), "the machine has slept");
            sleep.woke = Some(Instant::now());
            sleep.total = total;
        }
        sleep.woke
    }
}

/// How long the machine has been suspended since boot.
fn slept() -> Duration {
    let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    let monotonic = read(ClockId::Monotonic);
    read(ClockId::Boottime).saturating_sub(monotonic)
}
