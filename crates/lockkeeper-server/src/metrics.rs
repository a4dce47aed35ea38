//! What can be measured, in the text format of Prometheus. Lock names are never labels: there is no bound
//! on how many of them there are.

use lockkeeper_core::{Counts, Freed, SessionEnd, Token};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// A reason or outcome, from a fixed set of words.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Why {
    reason: &'static str,
}

/// The metrics of a node.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    wait_seconds: Histogram,
    hold_seconds: Histogram,
    refused: Family<Why, Counter>,
    lost: Family<Why, Counter>,
    sessions_ended: Family<Why, Counter>,
    stale_writes: Counter,
    /// Renewals that were acknowledged.
    pub keep_alives: Counter,
    /// Commands in each entry.
    pub batch_commands: Histogram,
    /// Snapshots that were taken.
    pub snapshots: Counter,
    /// How long each took.
    pub snapshot_seconds: Histogram,
    sessions: Gauge,
    locks_held: Gauge,
    waiters: Gauge,
    values: Gauge,
    last_token: Gauge,
    queued: Gauge,
    leader: Gauge,
    term: Gauge,
    applied: Gauge,
}

/// Figures that are read off the node when somebody asks for the metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading {
    /// What is in the table.
    pub counts: Counts,
    /// The highest token.
    pub last_token: Token,
    /// Commands in front of the log.
    pub queued: u64,
    /// Whether this node leads.
    pub leads: bool,
    /// The term.
    pub term: u64,
    /// The last entry applied.
    pub applied: u64,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Metrics {
        let seconds = || Histogram::new(exponential_buckets(0.000_1, 2.5, 16));
        let mut metrics = Metrics {
            registry: Registry::with_prefix("lockkeeper"),
            wait_seconds: seconds(),
            hold_seconds: seconds(),
            refused: Family::default(),
            lost: Family::default(),
            sessions_ended: Family::default(),
            stale_writes: Counter::default(),
            keep_alives: Counter::default(),
            batch_commands: Histogram::new(exponential_buckets(1.0, 2.0, 13)),
            snapshots: Counter::default(),
            snapshot_seconds: seconds(),
            sessions: Gauge::default(),
            locks_held: Gauge::default(),
            waiters: Gauge::default(),
            values: Gauge::default(),
            last_token: Gauge::default(),
            queued: Gauge::default(),
            leader: Gauge::default(),
            term: Gauge::default(),
            applied: Gauge::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let r = &mut self.registry;
        r.register(
            "lock_acquire_wait_seconds",
            "How long granted requests waited, in cell time",
            self.wait_seconds.clone(),
        );
        r.register("lock_hold_seconds", "How long locks were held, in cell time", self.hold_seconds.clone());
        r.register("lock_refused", "Acquires that were not granted", self.refused.clone());
        r.register("lock_lost", "Grants that were taken from their holder", self.lost.clone());
        r.register(
            "fenced_writes_rejected",
            "Writes to values with a stale token",
            self.stale_writes.clone(),
        );
        r.register("sessions_ended", "Sessions that ended", self.sessions_ended.clone());
        r.register("keep_alives", "Session renewals acknowledged", self.keep_alives.clone());
        r.register("proposer_batch_commands", "Commands in one log entry", self.batch_commands.clone());
        r.register("proposer_queued", "Commands that wait for the next log entry", self.queued.clone());
        r.register("snapshots", "Snapshots taken", self.snapshots.clone());
        r.register(
            "snapshot_seconds",
            "How long a snapshot took, beside the serving",
            self.snapshot_seconds.clone(),
        );
        r.register("sessions", "Sessions alive", self.sessions.clone());
        r.register("locks_held", "Grants held", self.locks_held.clone());
        r.register("lock_waiters", "Requests that wait", self.waiters.clone());
        r.register("values", "Values stored", self.values.clone());
        r.register("last_token", "The highest token granted", self.last_token.clone());
        r.register("raft_is_leader", "1 while this node leads", self.leader.clone());
        r.register("raft_term", "The term", self.term.clone());
        r.register("raft_applied_index", "The last entry applied", self.applied.clone());
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        r.register("build", "What runs here", build);
    }

    /// A request was granted without waiting.
    pub fn granted_at_once(&self) {
        self.wait_seconds.observe(0.0);
    }

    /// A request was granted after a wait.
    pub fn granted_after(&self, waited_ms: u64) {
        self.wait_seconds.observe(waited_ms as f64 / 1_000.0);
    }

    /// A request was not granted.
    pub fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&Why { reason }).inc();
    }

    /// A grant ended.
    pub fn freed(&self, why: Freed, held_ms: u64) {
        self.hold_seconds.observe(held_ms as f64 / 1_000.0);
        let reason = match why {
            Freed::SessionExpired => "session_expired",
            Freed::Forced => "forced",
            Freed::Wounded => "wounded",
            Freed::Released | Freed::SessionClosed | Freed::Cancelled => return,
        };
        self.lost.get_or_create(&Why { reason }).inc();
    }

    /// A session ended.
    pub fn session_ended(&self, why: SessionEnd) {
        let reason = match why {
            SessionEnd::Closed => "closed",
            SessionEnd::Expired => "expired",
        };
        self.sessions_ended.get_or_create(&Why { reason }).inc();
    }

    /// A value was not written because the token was stale.
    pub fn stale_write_refused(&self) {
        self.stale_writes.inc();
    }

    /// Everything as text.
    pub fn text(&self, reading: Reading) -> String {
        self.sessions.set(reading.counts.sessions as i64);
        self.locks_held.set(reading.counts.grants as i64);
        self.waiters.set(reading.counts.waiting as i64);
        self.values.set(reading.counts.values as i64);
        self.last_token.set(reading.last_token.0 as i64);
        self.queued.set(reading.queued as i64);
        self.leader.set(reading.leads.into());
        self.term.set(reading.term as i64);
        self.applied.set(reading.applied as i64);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
