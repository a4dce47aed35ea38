//! The leader's lease (S3): for how long it can be sure that no other leader exists.
//!
//! A member that acknowledged a message of the leader votes for nobody else for a while after it. So from the
//! moment at which the leader SENT the last message that a majority has acknowledged, it is the only one
//! for that while, less what clocks may differ by.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use openraft::metrics::RaftMetrics;
use openraft::type_config::alias::WatchReceiverOf;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use super::acks::Acks;
use super::types::TypeConfig;

/// Clocks may run apart by one percent and two milliseconds.
const DRIFT_PERCENT: u32 = 1;
const DRIFT_MORE: Duration = Duration::from_millis(2);
/// The two clocks of one machine are not read in the same instant.
const READ_APART: Duration = Duration::from_millis(5);

/// Tells whether this node may answer without asking.
pub(crate) struct Lease {
    metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    acks: Arc<Acks>,
    lasts: Duration,
    sleep: Mutex<Sleep>,
}

/// What is known of the times at which the whole machine slept.
#[derive(Debug)]
struct Sleep {
    total: Duration,
    woke: Option<Instant>,
}

impl Lease {
    /// Members keep their promise for `promised` after each message of the leader.
    pub(crate) fn new(
        metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
        acks: Arc<Acks>,
        promised: Duration,
    ) -> Lease {
        let drift = promised * DRIFT_PERCENT / 100 + DRIFT_MORE;
        let sleep = Sleep { total: slept(), woke: None };
        Lease { metrics, acks, lasts: promised.saturating_sub(drift), sleep: Mutex::new(sleep) }
    }

    /// Whether no other leader can exist now.
    pub(crate) fn is_valid(&self) -> bool {
        self.silence().is_some_and(|silence| silence < self.lasts)
    }

    /// How long ago a majority was last heard. `None` if this node does not lead, or nobody was heard yet.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let metrics = self.metrics.borrow_watched();
        if metrics.state != ServerState::Leader {
            return None;
        }
        let groups = metrics.membership_config.membership().get_joint_config();
        let now = Instant::now();
        let acknowledged = self.acks.majority_since(metrics.id, metrics.vote, groups, now)?;
        if acknowledged == now {
            // It votes alone.
            return Some(Duration::ZERO);
        }
        // The clock of `Instant` stands still while the machine sleeps; the other members' clocks do not.
        if self.woke().is_some_and(|woke| acknowledged <= woke) {
            return None;
        }
        Some(now.saturating_duration_since(acknowledged))
    }

    fn woke(&self) -> Option<Instant> {
        let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        let total = slept();
        if total > sleep.total + READ_APART {
            tracing::warn!(slept = ?(total - sleep.total), "the machine has slept");
            sleep.woke = Some(Instant::now());
            sleep.total = total;
        }
        sleep.woke
    }
}

/// For how long the machine has slept since it was started.
fn slept() -> Duration {
    let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    let monotonic = read(ClockId::Monotonic);
    read(ClockId::Boottime).saturating_sub(monotonic)
}
