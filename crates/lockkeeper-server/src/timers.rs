//! What the leader has to do by itself when time passes: end sessions that were not renewed, and give the
//! table a tick when a wait or a lock-delay is over, or when cell time has not been logged for about a second (S2).

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Command, SessionId};
use tokio::time::Instant;

use crate::callers::Caller;
use crate::propose::space;
use crate::raft::Consensus;
use crate::raft::log::LogStore;
use crate::shared::Shared;

/// Most sessions that are ended in one go.
const EXPIRIES_PER_TURN: usize = 1_000;
/// No more are ended while so many commands wait for the log: what clients ask for has its turn as well.
const QUEUED_MAX: usize = 10_000;
/// How many sessions and waiting requests of its predecessor a new leader looks at in one go: 2 to 3 ms.
const TAKEN_OVER_PER_TURN: usize = 10_000;
/// While the queue is long, the next look.
const QUEUE_IS_LONG: Duration = Duration::from_millis(5);
/// Up to here a node is not late.
const EVERYDAY: Duration = Duration::from_millis(50);
/// A look at the clock at least this often; also how soon a disk that has room again is noticed.
const LOOK_AT_LEAST: Duration = Duration::from_millis(500);

/// A node that is late with everything is late with renewals too. Up to this much it waits longer for them than it
/// promised; a holder that has died keeps its lock for that much longer at most.
const GRACE_MAX: Duration = Duration::from_secs(10);

/// Runs until the node stops.
pub(crate) async fn run(shared: Arc<Shared>, consensus: Consensus, log: LogStore) {
    let mut strain = Strain::default();
    loop {
        let wake = match shared.leader_term.now() {
            Ok(now) => turn(&shared, now, strain.grace(shared.queue.late())),
            Err(_) => LOOK_AT_LEAST,
        };
        space::check(&shared, &consensus, &log);
        let due = Instant::now() + wake;
        tokio::select! {
            biased;
            () = pause(wake) => strain.woke(Instant::now().saturating_duration_since(due)),
            () = shared.timers_changed.notified() => {}
        }
    }
}

/// Everybody else has a turn at least: a sleep of no length would end at once.
async fn pause(wake: Duration) {
    match wake.is_zero() {
        true => tokio::task::yield_now().await,
        false => tokio::time::sleep(wake).await,
    }
}

/// How late this task's own sleeps have ended recently: as late as renewals may be that wait to be read.
#[derive(Debug, Default)]
struct Strain {
    late: Duration,
}

impl Strain {
    fn woke(&mut self, late: Duration) {
        // It rises at once and falls slowly: one good turn does not mean that all who wait have been read.
        self.late = late.max(self.late / 2);
    }

    /// How much longer than promised renewals are waited for. Longer is always safe: clients know nothing of it.
    fn grace(&self, queue_late: Duration) -> Duration {
        let late = self.late.max(queue_late);
        // A few milliseconds late is everyday life.
        if late < EVERYDAY { Duration::ZERO } else { (2 * late).min(GRACE_MAX) }
    }
}

/// Does what is due and says how long to sleep.
fn turn(shared: &Shared, now: lockkeeper_core::CellTime, grace: Duration) -> Duration {
    let more = take_over_more(shared);
    let clock = Instant::now();
    let room = QUEUED_MAX.saturating_sub(shared.queue.queued()).min(EXPIRIES_PER_TURN);
    let (expired, next) = shared.expiry.take_due(clock, grace, room);
    let mut wake = next.map_or(LOOK_AT_LEAST, |next| next.saturating_duration_since(clock));
    if room == 0 {
        wake = QUEUE_IS_LONG;
    }
    if more {
        wake = Duration::ZERO;
    }
    expire(shared, expired);
    if let Some(due) = shared.table().next_entry_due() {
        if due <= now {
            shared.tick();
            // The tick's own entry wakes this task again if something is left.
            wake = wake.min(Duration::from_millis(5));
        } else {
            wake = wake.min(Duration::from_micros(due.0 - now.0));
        }
    }
    wake.min(LOOK_AT_LEAST)
}

/// Asks for the end of these sessions.
fn expire(shared: &Shared, expired: Vec<SessionId>) {
    if expired.is_empty() {
        return;
    }
    let table = shared.table();
    for session in expired {
        // The version is read after renewals have been shut off: whatever the session does from here on
        // through the log makes the expiry stale (S3).
        match table.session(session).map(|alive| alive.version) {
            Some(version) => {
                shared.submit(Command::ExpireSession { session, version }, Caller::Nobody);
            }
            None => shared.expiry.forget(session),
        }
    }
}

/// One more slice of what a new leader takes over. True if there is more.
fn take_over_more(shared: &Shared) -> bool {
    let (more_sessions, (commands, more_requests)) = {
        let table = shared.table();
        let more_sessions = shared.expiry.take_over_more(&table, TAKEN_OVER_PER_TURN);
        (more_sessions, shared.orphans.look_at_more(&table, TAKEN_OVER_PER_TURN))
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
    fn grace_comes_with_lateness_at_once_goes_slowly_and_has_an_end() {
        let ms = Duration::from_millis;
        let mut strain = Strain::default();
        strain.woke(ms(10));
        assert_eq!(strain.grace(ms(20)), Duration::ZERO, "everyday life");
        assert_eq!(strain.grace(ms(300)), ms(600), "the queue is late");
        strain.woke(ms(400));
        strain.woke(ms(0));
        assert_eq!(strain.grace(ms(0)), ms(400), "it was late a moment ago");
        strain.woke(Duration::from_secs(60));
        assert_eq!(strain.grace(ms(0)), GRACE_MAX);
        for _ in 0..20 {
            strain.woke(ms(0));
        }
        assert_eq!(strain.grace(ms(0)), Duration::ZERO);
    }
}
