//! Outcomes of acquires, and how long they waited. Every counter is looked up once, when the node starts, because a lookup
//! costs more than counting.

use lockkeeper_api::Code;
use lockkeeper_core::{Mode, Refusal};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{ReasonLabel, seconds};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabels {
    mode: &'static str,
    outcome: &'static str,
}

/// The histograms of one outcome, one for each mode.
#[derive(Debug)]
struct Waits {
    exclusive: Histogram,
    shared: Histogram,
}

impl Waits {
    fn of(family: &Family<WaitLabels, Histogram>, outcome: &'static str) -> Waits {
        let in_mode = |mode: Mode| family.get_or_create(&WaitLabels { mode: mode.as_str(), outcome }).clone();
        Waits { exclusive: in_mode(Mode::Exclusive), shared: in_mode(Mode::Shared) }
    }

    fn observe(&self, mode: Mode, waited_ms: u64) {
        let histogram = match mode {
            Mode::Exclusive => &self.exclusive,
            Mode::Shared => &self.shared,
        };
        histogram.observe(waited_ms as f64 / 1_000.0);
    }
}

/// Acquires by outcome. Each decided acquire is counted in exactly one histogram.
#[derive(Debug)]
pub(super) struct Acquires {
    granted: Waits,
    timeout: Waits,
    refused: Waits,
    cancelled: Waits,
    session_ended: Waits,
    // Those that were not granted, by reason.
    busy: Counter,
    timeouts: Counter,
    deadlock: Counter,
    died: Counter,
    wounded: Counter,
    rate: Counter,
}

impl Acquires {
    pub(super) fn new(registry: &mut Registry) -> Acquires {
        let waits = Family::<WaitLabels, Histogram>::new_with_constructor(seconds);
        let refused = Family::<ReasonLabel, Counter>::default();
        let of = |outcome| Waits::of(&waits, outcome);
        let count = |reason| refused.get_or_create(&ReasonLabel { reason }).clone();
        let acquires = Acquires {
            granted: of("granted"),
            timeout: of("timeout"),
            refused: of("refused"),
            cancelled: of("cancelled"),
            session_ended: of("session_ended"),
            busy: count(Code::Busy.as_str()),
            timeouts: count(Code::Timeout.as_str()),
            deadlock: count(Code::Deadlock.as_str()),
            died: count(Code::Died.as_str()),
            wounded: count(Code::Wounded.as_str()),
            rate: count("rate"),
        };
        registry.register(
            "lock_acquire_wait_seconds",
            "How long acquires waited until they were decided, in cell time",
            waits,
        );
        registry.register("lock_refused", "Acquires that were not granted", refused);
        acquires
    }

    pub(super) fn granted(&self, mode: Mode, waited_ms: u64) {
        self.granted.observe(mode, waited_ms);
    }

    /// Counts a refusal. Invalid requests are not counted: nothing was decided.
    pub(super) fn refused(&self, mode: Mode, why: &Refusal, waited_ms: u64) {
        let (waits, counter) = match why {
            Refusal::Busy { .. } => (&self.refused, Some(&self.busy)),
            Refusal::Deadlock { .. } => (&self.refused, Some(&self.deadlock)),
            Refusal::Died { .. } => (&self.refused, Some(&self.died)),
            Refusal::Wounded => (&self.refused, Some(&self.wounded)),
            Refusal::Timeout { .. } => (&self.timeout, Some(&self.timeouts)),
            Refusal::Cancelled => (&self.cancelled, None),
            Refusal::SessionLost => (&self.session_ended, None),
            Refusal::NotHeld { .. }
            | Refusal::StaleToken { .. }
            | Refusal::VersionMismatch { .. }
            | Refusal::Invalid(_)
            | Refusal::TooLarge(_)
            | Refusal::Limit(_) => return,
        };
        waits.observe(mode, waited_ms);
        if let Some(counter) = counter {
            counter.inc();
        }
    }

    pub(super) fn rate_exhausted(&self) {
        self.rate.inc();
    }
}
