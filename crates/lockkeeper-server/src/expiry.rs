//! Session timers, on the leader alone. A renewal costs one write to memory and never enters the log.
//!
//! The heap holds one entry for each session, set for the earliest moment at which it can be due. A renewal
//! does not touch it: when the entry comes up, the session is either due or gets a later one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::{LockTable, SessionId};
use tokio::time::Instant;

/// So many entries of ended sessions are not worth a sweep.
const SWEEP_ABOVE: usize = 1_024;

/// The timers of all sessions.
#[derive(Debug, Default)]
pub struct Expiry {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    sessions: HashMap<SessionId, Lifeline>,
    due: BinaryHeap<Reverse<(Instant, SessionId)>>,
}

#[derive(Debug, Clone, Copy)]
struct Lifeline {
    ttl: Duration,
    renewed: Instant,
    /// An expiry is on its way through the log: no renewal is acknowledged any more (S3).
    expiring: bool,
}

impl Expiry {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new leader gives every session its full time to live.
    pub fn take_over(&self, table: &LockTable) {
        let now = Instant::now();
        let mut inner = self.inner();
        inner.sessions.clear();
        inner.due.clear();
        for (id, session) in table.sessions() {
            let short = mutation::is_on(Mutation::ShortTimeAtTakeOver);
            let ttl_ms = if short { session.ttl_ms / 4 } else { session.ttl_ms };
            inner.start(id, Duration::from_millis(ttl_ms), now);
        }
    }

    /// This node no longer leads.
    pub fn stop(&self) {
        *self.inner() = Inner::default();
    }

    /// A session was opened, or an expiry turned out to be stale: its full time starts now.
    pub fn start(&self, session: SessionId, ttl_ms: u64) {
        self.inner().start(session, Duration::from_millis(ttl_ms), Instant::now());
    }

    /// A session has ended.
    pub fn forget(&self, session: SessionId) {
        let mut inner = self.inner();
        inner.sessions.remove(&session);
        // Entries of sessions that have ended stay in the heap until they come up; too many are swept out.
        if inner.due.len() > 2 * inner.sessions.len() + SWEEP_ABOVE {
            let Inner { sessions, due } = &mut *inner;
            due.retain(|Reverse((_, id))| sessions.contains_key(id));
        }
    }

    /// Renews a session. `None` if it is lost, or about to be.
    pub fn renew(&self, session: SessionId) -> Option<u64> {
        let mut inner = self.inner();
        let lifeline = inner
            .sessions
            .get_mut(&session)
            .filter(|lifeline| !lifeline.expiring || mutation::is_on(Mutation::RenewWhileExpiring))?;
        lifeline.renewed = Instant::now();
        Some(lifeline.ttl.as_millis() as u64)
    }

    /// How long a session still lives if it is not renewed. Only the leader knows.
    pub fn remaining_ms(&self, session: SessionId) -> Option<u64> {
        let inner = self.inner();
        let lifeline = inner.sessions.get(&session)?;
        Some(lifeline.ttl.saturating_sub(lifeline.renewed.elapsed()).as_millis() as u64)
    }

    /// Takes the sessions that have been due for `grace`, at most `limit`, and says when to look again. From here on
    /// their renewals are refused.
    pub fn take_due(&self, now: Instant, grace: Duration, limit: usize) -> (Vec<SessionId>, Option<Instant>) {
        let mut inner = self.inner();
        let mut expired = Vec::new();
        while let Some(&Reverse((due, session))) = inner.due.peek() {
            if due + grace > now || expired.len() == limit {
                break;
            }
            inner.due.pop();
            let Some(lifeline) = inner.sessions.get_mut(&session) else { continue };
            let really_due = lifeline.renewed + lifeline.ttl;
            if lifeline.expiring {
                continue;
            }
            if really_due + grace > now {
                inner.due.push(Reverse((really_due, session)));
                continue;
            }
            lifeline.expiring = true;
            expired.push(session);
        }
        let next = inner.due.peek().map(|Reverse((due, _))| *due + grace);
        (expired, next)
    }
}

impl Inner {
    fn start(&mut self, session: SessionId, ttl: Duration, now: Instant) {
        let known = self.sessions.insert(session, Lifeline { ttl, renewed: now, expiring: false });
        // A session that was not expiring still has its entry in the heap.
        if known.is_none_or(|lifeline| lifeline.expiring) {
            self.due.push(Reverse((now + ttl, session)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(7);
    const NONE: Duration = Duration::ZERO;

    #[test]
    fn a_session_is_due_after_its_time_and_not_before() {
        let expiry = Expiry::default();
        expiry.start(SESSION, 1_000);
        let now = Instant::now();
        assert_eq!(expiry.take_due(now, NONE, 10).0, []);
        assert_eq!(expiry.take_due(now + Duration::from_millis(1_001), NONE, 10).0, [SESSION]);
    }

    #[test]
    fn a_renewal_moves_the_moment() {
        let expiry = Expiry::default();
        expiry.start(SESSION, 1_000);
        let opened = Instant::now();
        while opened.elapsed() < Duration::from_millis(2) {}
        assert_eq!(expiry.renew(SESSION), Some(1_000));
        let (expired, next) = expiry.take_due(opened + Duration::from_millis(1_001), NONE, 10);
        assert_eq!(expired, []);
        assert!(next.is_some_and(|next| next > opened + Duration::from_millis(1_001)));
    }

    #[test]
    fn no_renewal_while_an_expiry_is_in_flight() {
        let expiry = Expiry::default();
        expiry.start(SESSION, 100);
        let later = Instant::now() + Duration::from_millis(200);
        assert_eq!(expiry.take_due(later, NONE, 10).0, [SESSION]);
        assert_eq!(expiry.renew(SESSION), None);
        assert_eq!(expiry.take_due(later, NONE, 10).0, [], "it is proposed once");
        // The table found the expiry stale.
        expiry.start(SESSION, 100);
        assert_eq!(expiry.renew(SESSION), Some(100));
        assert_eq!(expiry.take_due(Instant::now() + Duration::from_millis(200), NONE, 10).0, [SESSION]);
    }

    #[test]
    fn a_node_that_is_late_waits_longer_and_takes_a_renewal_meanwhile() {
        let expiry = Expiry::default();
        expiry.start(SESSION, 100);
        let (later, grace) = (Instant::now() + Duration::from_millis(200), Duration::from_secs(1));
        let (expired, next) = expiry.take_due(later, grace, 10);
        assert_eq!(expired, []);
        assert!(next.is_some_and(|next| next > later), "it is looked at again when the grace is over");
        assert_eq!(expiry.renew(SESSION), Some(100), "not more than was promised before");
        assert_eq!(expiry.take_due(later + Duration::from_secs(2), grace, 10).0, [SESSION]);
    }

    #[test]
    fn an_unknown_session_cannot_be_renewed() {
        assert_eq!(Expiry::default().renew(SESSION), None);
    }
}
