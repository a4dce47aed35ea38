//! Metrics in the text format of Prometheus. Lock names are never labels, because their number is unbounded; `/v1/top`
//! names the locks that matter.

mod acquires;
pub mod hourly_stats;
mod members;
pub mod slow_acquires;

use lockkeeper_core::{Counts, Freed, Mode, Refusal, SessionEnd, Token};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use self::acquires::Acquires;
pub use self::members::MemberCounters;
use crate::observe::disk::Disk;
use crate::raft::RaftStatus;

/// The label `reason`, from a fixed set of words.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// The label `member`. A cell has few members.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemberLabel {
    member: u64,
}

/// Why requests and connections are turned away. docs/security.md explains each.
const TURNED_AWAY_REASONS: [&str; 12] = [
    "another_session",
    "connections",
    "connections_of_address",
    "forbidden",
    "handshake",
    "host",
    "not_a_member",
    "not_grpc",
    "other_site",
    "request_rate",
    "unauthenticated",
    "silent",
];

/// Returns a histogram of times, from a tenth of a millisecond to a day.
pub(crate) fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 2.5, 16))
}

/// The metrics of a node.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    acquires: Acquires,
    hold_seconds: Histogram,
    turned_away: Family<ReasonLabel, Counter>,
    // Looked up once: finding a member of a family costs more than counting.
    lost_to_expiry: Counter,
    lost_to_force: Counter,
    lost_to_older: Counter,
    sessions_closed: Counter,
    sessions_expired: Counter,
    stale_writes: Counter,
    /// Grants after a wait that counts as slow.
    pub slow_acquires: Counter,
    /// Renewals that were acknowledged.
    pub keep_alives: Counter,
    /// Commands in each entry.
    pub batch_commands: Histogram,
    /// Snapshots that were taken.
    pub snapshots: Counter,
    /// How long each snapshot took.
    pub snapshot_seconds: Histogram,
    /// Connections and elections among members.
    pub members: MemberCounters,
    gauges: Gauges,
}

/// Gauges that are set on each scrape.
#[derive(Debug, Default)]
struct Gauges {
    sessions: Gauge,
    locks: Gauge,
    locks_held: Gauge,
    waiters: Gauge,
    oldest_wait: Gauge<f64, std::sync::atomic::AtomicU64>,
    oldest_hold: Gauge<f64, std::sync::atomic::AtomicU64>,
    values: Gauge,
    last_token: Gauge,
    history_events: Gauge,
    state_bytes: Gauge,
    state_bytes_max: Gauge,
    table_differs: Gauge,
    queued: Gauge,
    refuses_new: Gauge,
    watchers: Gauge,
    leader: Gauge,
    has_leader: Gauge,
    term: Gauge,
    last_log: Gauge,
    applied: Gauge,
    snapshot: Gauge,
    members: Gauge,
    lag: Family<MemberLabel, Gauge>,
    silent: Family<MemberLabel, Gauge<f64, std::sync::atomic::AtomicU64>>,
    disk_free: Gauge,
    disk_total: Gauge,
    data_bytes: Gauge,
    uptime: Gauge<f64, std::sync::atomic::AtomicU64>,
}

/// The values of the gauges at one scrape.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// Numbers of things in the table.
    pub counts: Counts,
    /// The highest token.
    pub last_token: Token,
    /// How long the oldest request has waited.
    pub oldest_wait_ms: u64,
    /// How long the oldest grant has been held.
    pub oldest_hold_ms: u64,
    /// Events in the history.
    pub history_events: u64,
    /// Size of the state, in logical bytes.
    pub state_bytes: u64,
    /// The limit of that size.
    pub state_bytes_max: u64,
    /// Whether this node's table differs from the majority's.
    pub table_differs: bool,
    /// Commands that wait for the next log entry.
    pub queued: u64,
    /// Whether only releasing commands are accepted because the disk is full.
    pub refuses_new: bool,
    /// Console pages that watch this node.
    pub watchers: u64,
    /// Whether this node leads.
    pub leads: bool,
    /// The status of Raft.
    pub raft: RaftStatus,
    /// The disk, unless the node runs in memory.
    pub disk: Option<Disk>,
    /// How long the process has been running.
    pub uptime_ms: u64,
}

impl Metrics {
    /// Creates all metrics at zero. `sync_seconds` is filled by the log.
    pub fn new(sync_seconds: Histogram) -> Metrics {
        let mut registry = Registry::with_prefix("lockkeeper");
        // Alerts compare with earlier values, so every label value exists from the start.
        let lost = Family::<ReasonLabel, Counter>::default();
        let sessions_ended = Family::<ReasonLabel, Counter>::default();
        let count = |family: &Family<ReasonLabel, Counter>, reason| {
            family.get_or_create(&ReasonLabel { reason }).clone()
        };
        let mut metrics = Metrics {
            acquires: Acquires::new(&mut registry),
            registry,
            hold_seconds: seconds(),
            turned_away: Family::default(),
            lost_to_expiry: count(&lost, Freed::SessionExpired.as_str()),
            lost_to_force: count(&lost, Freed::Forced.as_str()),
            lost_to_older: count(&lost, Freed::Wounded.as_str()),
            sessions_closed: count(&sessions_ended, SessionEnd::Closed.as_str()),
            sessions_expired: count(&sessions_ended, SessionEnd::Expired.as_str()),
            stale_writes: Counter::default(),
            slow_acquires: Counter::default(),
            keep_alives: Counter::default(),
            batch_commands: Histogram::new(exponential_buckets(1.0, 2.0, 13)),
            snapshots: Counter::default(),
            snapshot_seconds: seconds(),
            members: MemberCounters::default(),
            gauges: Gauges::default(),
        };
        for reason in TURNED_AWAY_REASONS {
            drop(metrics.turned_away.get_or_create(&ReasonLabel { reason }));
        }
        metrics.register(lost, sessions_ended, sync_seconds);
        metrics.gauges.register(&mut metrics.registry);
        metrics
    }

    fn register(
        &mut self,
        lost: Family<ReasonLabel, Counter>,
        sessions_ended: Family<ReasonLabel, Counter>,
        sync_seconds: Histogram,
    ) {
        let r = &mut self.registry;
        r.register("lock_hold_seconds", "How long locks were held, in cell time", self.hold_seconds.clone());
        r.register(
            "turned_away",
            "Requests and connections turned away before they were served",
            self.turned_away.clone(),
        );
        r.register("lock_lost", "Grants taken from their holder", lost);
        r.register(
            "lock_slow_acquires",
            "Grants after a wait that counts as slow",
            self.slow_acquires.clone(),
        );
        r.register(
            "fenced_writes_rejected",
            "Writes to values refused for a stale token",
            self.stale_writes.clone(),
        );
        r.register("sessions_ended", "Sessions that ended", sessions_ended);
        r.register("keep_alives", "Session renewals acknowledged", self.keep_alives.clone());
        r.register("proposer_batch_commands", "Commands in one log entry", self.batch_commands.clone());
        r.register("wal_fsync_seconds", "How long each sync of the log to disk took", sync_seconds);
        r.register("snapshots", "Snapshots taken", self.snapshots.clone());
        r.register(
            "snapshot_seconds",
            "How long a snapshot took to write in the background",
            self.snapshot_seconds.clone(),
        );
        self.members.register(r);
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        r.register("build", "Build information", build);
    }

    /// Counts a grant without a wait.
    pub fn granted_at_once(&self, mode: Mode) {
        self.acquires.granted(mode, 0);
    }

    /// Counts a grant after a wait.
    pub fn granted_after(&self, mode: Mode, waited_ms: u64) {
        self.acquires.granted(mode, waited_ms);
    }

    /// Counts a refusal without a wait.
    pub fn refused_at_once(&self, mode: Mode, why: &Refusal) {
        // These repeat the outcome of a wait that was counted when it ended.
        if !matches!(why, Refusal::Timeout { .. } | Refusal::Cancelled | Refusal::SessionLost) {
            self.acquires.refused(mode, why, 0);
        }
    }

    /// Counts a wait that ended without a grant.
    pub fn refused_after(&self, mode: Mode, why: &Refusal, waited_ms: u64) {
        self.acquires.refused(mode, why, waited_ms);
    }

    /// Counts a rate limiter without permits left.
    pub fn rate_exhausted(&self) {
        self.acquires.rate_exhausted();
    }

    /// Counts a request or connection that is refused for its origin or because there are too many.
    pub fn turned_away(&self, reason: &'static str) {
        debug_assert!(TURNED_AWAY_REASONS.contains(&reason), "{reason} is not in TURNED_AWAY_REASONS");
        self.turned_away.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Counts the end of a grant.
    pub fn freed(&self, why: Freed, held_ms: u64) {
        self.hold_seconds.observe(held_ms as f64 / 1_000.0);
        let lost = match why {
            Freed::SessionExpired => &self.lost_to_expiry,
            Freed::Forced => &self.lost_to_force,
            Freed::Wounded => &self.lost_to_older,
            Freed::Released | Freed::SessionClosed | Freed::Cancelled => return,
        };
        lost.inc();
    }

    /// Counts the end of a session.
    pub fn session_ended(&self, why: SessionEnd) {
        let ended = match why {
            SessionEnd::Closed => &self.sessions_closed,
            SessionEnd::Expired => &self.sessions_expired,
        };
        ended.inc();
    }

    /// Counts a write that was refused for a stale token.
    pub fn stale_write_refused(&self) {
        self.stale_writes.inc();
    }

    /// Sets the gauges and returns all metrics as text.
    pub fn text(&self, reading: &Reading) -> String {
        self.gauges.set(reading);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl Gauges {
    fn register(&self, r: &mut Registry) {
        r.register("sessions", "Live sessions", self.sessions.clone());
        r.register("locks", "Locks that are held, waited for or closed", self.locks.clone());
        r.register("locks_held", "Grants held", self.locks_held.clone());
        r.register("lock_waiters", "Requests that wait for a lock", self.waiters.clone());
        r.register(
            "lock_oldest_wait_seconds",
            "How long the oldest request has waited",
            self.oldest_wait.clone(),
        );
        r.register(
            "lock_oldest_hold_seconds",
            "How long the oldest grant has been held",
            self.oldest_hold.clone(),
        );
        r.register("values", "Values stored", self.values.clone());
        r.register("last_token", "The highest token granted", self.last_token.clone());
        r.register("history_events", "Events in the history", self.history_events.clone());
        r.register("state_bytes", "Size of the cell's state in logical bytes", self.state_bytes.clone());
        r.register(
            "state_bytes_max",
            "Limit of the size of the cell's state in logical bytes",
            self.state_bytes_max.clone(),
        );
        r.register(
            "table_differs",
            "1 while this node does not serve because its lock table differs from the majority's",
            self.table_differs.clone(),
        );
        r.register("proposer_queued", "Commands that wait for the next log entry", self.queued.clone());
        r.register(
            "proposer_refuses_new",
            "1 while only releasing commands are accepted because the disk is full",
            self.refuses_new.clone(),
        );
        r.register("console_watchers", "Console pages that watch this node", self.watchers.clone());
        r.register("raft_is_leader", "1 while this node leads", self.leader.clone());
        r.register("raft_has_leader", "1 while this node knows of a leader", self.has_leader.clone());
        r.register("raft_term", "The current Raft term", self.term.clone());
        r.register("raft_last_log_index", "Index of the last log entry", self.last_log.clone());
        r.register("raft_applied_index", "Index of the last applied entry", self.applied.clone());
        r.register("raft_snapshot_index", "Index of the last entry in the snapshot", self.snapshot.clone());
        r.register("raft_members", "Members of the cell", self.members.clone());
        r.register("raft_member_lag_entries", "Entries that a member lacks, on the leader", self.lag.clone());
        r.register(
            "raft_member_silent_seconds",
            "How long a member has not responded, on the leader",
            self.silent.clone(),
        );
        r.register("disk_free_bytes", "Free space on the disk of the data folder", self.disk_free.clone());
        r.register("disk_total_bytes", "Size of the disk of the data folder", self.disk_total.clone());
        r.register("data_bytes", "Space used by the log and the snapshots", self.data_bytes.clone());
        r.register("uptime_seconds", "How long the process has been running", self.uptime.clone());
    }

    fn set(&self, reading: &Reading) {
        let seconds = |ms: u64| ms as f64 / 1_000.0;
        self.sessions.set(reading.counts.sessions as i64);
        self.locks.set(reading.counts.locks as i64);
        self.locks_held.set(reading.counts.grants as i64);
        self.waiters.set(reading.counts.waiting as i64);
        self.oldest_wait.set(seconds(reading.oldest_wait_ms));
        self.oldest_hold.set(seconds(reading.oldest_hold_ms));
        self.values.set(reading.counts.values as i64);
        self.last_token.set(reading.last_token.0 as i64);
        self.history_events.set(reading.history_events as i64);
        self.state_bytes.set(reading.state_bytes as i64);
        self.state_bytes_max.set(reading.state_bytes_max as i64);
        self.table_differs.set(reading.table_differs.into());
        self.queued.set(reading.queued as i64);
        self.refuses_new.set(reading.refuses_new.into());
        self.watchers.set(reading.watchers as i64);
        self.leader.set(reading.leads.into());
        let raft = &reading.raft;
        self.has_leader.set(raft.leader.is_some().into());
        self.term.set(raft.term as i64);
        self.last_log.set(raft.last_log as i64);
        self.applied.set(raft.applied as i64);
        self.snapshot.set(raft.snapshot as i64);
        self.members.set(raft.members.len() as i64);
        // A removed member, or a leadership that has ended, must not leave its last value behind.
        self.lag.clear();
        self.silent.clear();
        for member in &raft.members {
            let of = MemberLabel { member: member.node_id };
            if let Some(matched) = member.matched {
                self.lag.get_or_create(&of).set(raft.last_log.saturating_sub(matched) as i64);
            }
            if let Some(ms) = member.silent_ms {
                self.silent.get_or_create(&of).set(seconds(ms));
            }
        }
        let disk = reading.disk.unwrap_or_default();
        self.disk_free.set(disk.free_bytes as i64);
        self.disk_total.set(disk.total_bytes as i64);
        self.data_bytes.set(disk.data_bytes as i64);
        self.uptime.set(seconds(reading.uptime_ms));
    }
}
