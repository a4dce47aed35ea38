//! Timers of the leader: it ends sessions that were not renewed, and proposes a tick when a wait or a lock-delay is
//! over, or when cell time has not been logged for about a second (S2).

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{CellTime, Command, SessionId};
use tokio::time::Instant;

use super::time_interval;
use crate::effects::callers::Caller;
use crate::propose::space;
use crate::raft::Consensus;
use crate::raft::log::LogStore;
use crate::shared::Shared;

/// Maximum number of sessions that are ended in one pass.
const EXPIRIES_PER_PASS: usize = 1_000;
/// No sessions are ended while this many commands are queued, so that clients' requests are not delayed.
const QUEUED_MAX: usize = 10_000;
/// Number of its predecessor's sessions and waiting requests that a new leader handles in one pass: 2 to 3 ms.
const TAKEN_OVER_PER_PASS: usize = 10_000;
/// Pause between passes while the queue is too long.
const LONG_QUEUE_PAUSE: Duration = Duration::from_millis(5);
/// Lateness below which a node does not count as overloaded.
const LATE_TOLERATED: Duration = Duration::from_millis(50);
/// Maximum interval between two passes. Also the delay until new disk space is noticed.
const PASS_INTERVAL_MAX: Duration = Duration::from_millis(500);

/// Maximum grace for renewals. An overloaded node reads renewals late, so it waits longer for them than the TTL. A dead
/// holder keeps its lock at most this much longer.
const GRACE_MAX: Duration = Duration::from_secs(10);

/// Runs until the node stops.
pub(crate) async fn run(shared: Arc<Shared>, consensus: Consensus, log: LogStore) {
    let mut lateness = Lateness::default();
    loop {
        let wake = match shared.leader_term.now() {
            Ok(now) => {
                let time_interval_ms = time_interval::ms(consensus.longest_round_trip());
                run_pass(&shared, now, lateness.grace(shared.queue.backlog_age()), time_interval_ms)
            }
            Err(_) => PASS_INTERVAL_MAX,
        };
        space::check(&shared, &consensus, &log);
        let due = Instant::now() + wake;
        tokio::select! {
            biased;
            () = pause(wake) => lateness.record(Instant::now().saturating_duration_since(due)),
            () = shared.timers_changed.notified() => {}
        }
    }
}

/// Sleeps, or at least yields to other tasks: a sleep of zero length would return at once.
async fn pause(wake: Duration) {
    match wake.is_zero() {
        true => tokio::task::yield_now().await,
        false => tokio::time::sleep(wake).await,
    }
}

/// Recent lateness of this task's wake-ups, an estimate of how late renewals are read.
#[derive(Debug, Default)]
struct Lateness {
    late: Duration,
}

impl Lateness {
    fn record(&mut self, late: Duration) {
        // It rises at once and falls slowly: one timely wake-up does not mean that all renewals have been read.
        self.late = late.max(self.late / 2);
    }

    /// Returns the time for which sessions are kept beyond their TTL. A longer grace is always safe: clients do not rely on it.
    fn grace(&self, queue_late: Duration) -> Duration {
        let late = self.late.max(queue_late);
        if late < LATE_TOLERATED { Duration::ZERO } else { (2 * late).min(GRACE_MAX) }
    }
}

/// Runs everything that is due. Returns the time until the next pass.
fn run_pass(shared: &Shared, now: CellTime, grace: Duration, time_interval_ms: u64) -> Duration {
    let more = take_over_more(shared);
    let clock = Instant::now();
    let room = QUEUED_MAX.saturating_sub(shared.queue.queued()).min(EXPIRIES_PER_PASS);
    let (expired, next) = shared.expiry.take_due(clock, grace, room);
    let mut wake = next.map_or(PASS_INTERVAL_MAX, |next| next.saturating_duration_since(clock));
    if room == 0 {
        wake = LONG_QUEUE_PAUSE;
    }
    if more {
        wake = Duration::ZERO;
    }
    expire(shared, expired);
    if let Some(due) = next_entry_due(shared, time_interval_ms) {
        if due <= now {
            shared.tick();
            // The tick's own entry wakes this task if more is left.
            wake = wake.min(Duration::from_millis(5));
        } else {
            wake = wake.min(Duration::from_micros(due.0 - now.0));
        }
    }
    wake.min(PASS_INTERVAL_MAX)
}

/// Returns when the next entry is due. While disks are full, cell time is not logged for its own sake: the space is kept for
/// entries that end something (S2, S11).
fn next_entry_due(shared: &Shared, time_interval_ms: u64) -> Option<CellTime> {
    let table = shared.table();
    if shared.queue.is_short() { table.next_wake() } else { table.next_entry_due_every(time_interval_ms) }
}

/// Proposes the end of these sessions.
fn expire(shared: &Shared, expired: Vec<SessionId>) {
    if expired.is_empty() {
        return;
    }
    let table = shared.table();
    for session in expired {
        // The version is read after renewals are refused: any later change of the session in the log makes the expiry
        // stale (S3).
        match table.session(session).map(|alive| alive.version) {
            Some(version) => {
                shared.submit(Command::ExpireSession { session, version }, Caller::Nobody);
            }
            None => shared.expiry.forget(session),
        }
    }
}

/// Takes over another slice of the predecessor's sessions and requests. Returns true if more are left.
fn take_over_more(shared: &Shared) -> bool {
    let (more_sessions, (commands, more_requests)) = {
        let table = shared.table();
        let more_sessions = shared.expiry.take_over_more(&table, TAKEN_OVER_PER_PASS);
        (more_sessions, shared.orphans.scan_more(&table, TAKEN_OVER_PER_PASS))
    };
    for command in commands {
        shared.submit(command, Caller::Nobody);
    }
    more_sessions || more_requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_rises_at_once_falls_slowly_and_is_bounded() {
        let ms = Duration::from_millis;
        let mut lateness = Lateness::default();
        lateness.record(ms(10));
        assert_eq!(lateness.grace(ms(20)), Duration::ZERO, "tolerated");
        assert_eq!(lateness.grace(ms(300)), ms(600), "the queue is late");
        lateness.record(ms(400));
        lateness.record(ms(0));
        assert_eq!(lateness.grace(ms(0)), ms(400), "it was late a moment ago");
        lateness.record(Duration::from_secs(60));
        assert_eq!(lateness.grace(ms(0)), GRACE_MAX);
        for _ in 0..20 {
            lateness.record(ms(0));
        }
        assert_eq!(lateness.grace(ms(0)), Duration::ZERO);
    }
}
