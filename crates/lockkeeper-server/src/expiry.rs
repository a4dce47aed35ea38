//! Session timers, on the leader alone. A renewal costs one write to memory and never enters the log.
//!
//! The heap holds one entry for each session, set for the earliest moment at which it can be due. A renewal
//! does not touch it: when the entry comes up, the session is either due or gets a later one.
//!
//! A new leader does not look at all sessions before it serves: with a million of them that would be a long stall. It
//! remembers when it took over, and the timer task gives the sessions their timers in slices. Until its timer is there, a
//! session counts as renewed at the take-over, and it cannot expire.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::session::Session;
use lockkeeper_core::{LockTable, SessionId};
use tokio::time::Instant;

/// So many entries of ended sessions are not worth a sweep.
const SWEEP_ABOVE: usize = 1_024;

/// So many entries are looked at in one go. Most of them are of sessions that were renewed, and get a later one.
const LOOKED_AT_MAX: usize = 10_000;

/// The timers of all sessions.
#[derive(Debug, Default)]
pub struct Expiry {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    sessions: HashMap<SessionId, Lifeline>,
    due: BinaryHeap<Reverse<(Instant, SessionId)>>,
    /// There while some sessions of the table may have no timer yet.
    taking_over: Option<TakingOver>,
    /// Entries of the heap that were looked at by sweeps.
    #[cfg(test)]
    swept: usize,
}

#[derive(Debug, Clone, Copy)]
struct TakingOver {
    /// When the leader took over.
    since: Instant,
    /// All sessions of the table below this one have their timers.
    next: SessionId,
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

    /// A new leader gives every session its full time to live, from now on. Their timers come with
    /// [`Expiry::take_over_more`].
    pub fn take_over(&self, table: &LockTable) {
        let count = table.counts().sessions as usize;
        let mut inner = self.inner();
        // Room for all of them, so that no slice has to move them.
        inner.sessions = HashMap::with_capacity(count);
        inner.due = BinaryHeap::with_capacity(count);
        inner.taking_over = Some(TakingOver { since: Instant::now(), next: SessionId(0) });
    }

    /// Gives up to `limit` more sessions of the table their timers. False when all of them have theirs.
    pub fn take_over_more(&self, table: &LockTable, limit: usize) -> bool {
        let mut inner = self.inner();
        let Some(TakingOver { since, next }) = inner.taking_over else { return false };
        let mut sessions = table.sessions_from(next);
        for (id, session) in sessions.by_ref().take(limit) {
            inner.adopt(id, session, since);
        }
        inner.taking_over = sessions.next().map(|(next, _)| TakingOver { since, next });
        inner.taking_over.is_some()
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
        // Entries of sessions that have ended stay in the heap until they come up; too many are swept out. A session
        // has one entry at most, so a sweep takes out at least half of what it looks at, and all sweeps together look at
        // no more than twice as many entries as were ever made.
        if inner.due.len() > 2 * inner.sessions.len() + SWEEP_ABOVE {
            let Inner { sessions, due, .. } = &mut *inner;
            #[cfg(test)]
            let looked_at = due.len();
            due.retain(|Reverse((_, id))| sessions.contains_key(id));
            #[cfg(test)]
            {
                inner.swept += looked_at;
            }
        }
    }

    /// Renews a session of this table. `None` if it is lost, or about to be.
    ///
    /// The table stays locked meanwhile, so that a session that has no timer yet cannot end before it has one: whoever
    /// ends a session changes the table first, and calls [`Expiry::forget`] after that (S3).
    pub fn renew(&self, table: &LockTable, session: SessionId) -> Option<u64> {
        let mut inner = self.inner();
        if let Some(TakingOver { since, .. }) = inner.taking_over
            && let Some(alive) = table.session(session)
        {
            inner.adopt(session, alive, since);
        }
        let lifeline = inner
            .sessions
            .get_mut(&session)
            .filter(|lifeline| !lifeline.expiring || mutation::is_on(Mutation::RenewWhileExpiring))?;
        lifeline.renewed = Instant::now();
        Some(lifeline.ttl.as_millis() as u64)
    }

    /// How long a session still lives if it is not renewed. Only the leader knows, once the session has its timer.
    pub fn remaining_ms(&self, session: SessionId) -> Option<u64> {
        let inner = self.inner();
        let lifeline = inner.sessions.get(&session)?;
        Some(lifeline.ttl.saturating_sub(lifeline.renewed.elapsed()).as_millis() as u64)
    }

    /// Takes the sessions that have been due for `grace`, at most `limit`, and says when to look again. From here on
    /// their renewals are refused.
    pub fn take_due(&self, now: Instant, grace: Duration, limit: usize) -> (Vec<SessionId>, Option<Instant>) {
        let mut inner = self.inner();
        let (mut expired, mut looked_at) = (Vec::new(), 0);
        while let Some(&Reverse((due, session))) = inner.due.peek() {
            if due + grace > now || expired.len() == limit || looked_at == LOOKED_AT_MAX {
                break;
            }
            looked_at += 1;
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
    /// A session that was there when this leader took over, unless it has a timer already.
    fn adopt(&mut self, id: SessionId, session: &Session, since: Instant) {
        if self.sessions.contains_key(&id) {
            return;
        }
        let short = mutation::is_on(Mutation::ShortTimeAtTakeOver);
        let ttl_ms = if short { session.ttl_ms / 4 } else { session.ttl_ms };
        self.start(id, Duration::from_millis(ttl_ms), since);
    }

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
    use lockkeeper_core::{Batch, CellTime, Command};

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
        assert_eq!(expiry.renew(&LockTable::new(), SESSION), Some(1_000));
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
        assert_eq!(expiry.renew(&LockTable::new(), SESSION), None);
        assert_eq!(expiry.take_due(later, NONE, 10).0, [], "it is proposed once");
        // The table found the expiry stale.
        expiry.start(SESSION, 100);
        assert_eq!(expiry.renew(&LockTable::new(), SESSION), Some(100));
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
        assert_eq!(expiry.renew(&LockTable::new(), SESSION), Some(100), "not more than was promised before");
        assert_eq!(expiry.take_due(later + Duration::from_secs(2), grace, 10).0, [SESSION]);
    }

    #[test]
    fn an_unknown_session_cannot_be_renewed() {
        assert_eq!(Expiry::default().renew(&LockTable::new(), SESSION), None);
    }

    fn table_with(sessions: u128, ttl_ms: u64) -> LockTable {
        let mut table = LockTable::new();
        let open = |id| Command::OpenSession {
            session: SessionId(id),
            ttl_ms,
            owner: "test".into(),
            identity: None,
        };
        let batch = Batch { now: CellTime(1), commands: (1..=sessions).map(open).collect() };
        let applied = table.apply(1, &batch).unwrap();
        assert!(applied.answers.iter().all(Result::is_ok), "all were opened");
        table
    }

    #[test]
    fn a_new_leader_gives_timers_in_slices_and_every_session_its_full_time() {
        let table = table_with(25_000, 1_000);
        let expiry = Expiry::default();
        expiry.take_over(&table);
        let took_over = Instant::now();
        assert_eq!(expiry.inner().sessions.len(), 0, "the take-over itself looks at none");
        let mut slices = Vec::new();
        loop {
            let before = expiry.inner().sessions.len();
            let more = expiry.take_over_more(&table, 10_000);
            slices.push(expiry.inner().sessions.len() - before);
            if !more {
                break;
            }
        }
        assert_eq!(slices, [10_000, 10_000, 5_000]);
        assert!(!expiry.take_over_more(&table, 10_000));
        let early = took_over.checked_sub(Duration::from_millis(100)).unwrap_or(took_over);
        assert_eq!(expiry.take_due(early + Duration::from_millis(1_000), NONE, 100_000).0, []);
        let late = took_over + Duration::from_millis(1_001);
        let expired = [(); 4].map(|()| expiry.take_due(late, NONE, 100_000).0.len());
        assert_eq!(expired, [10_000, 10_000, 5_000, 0], "each of them once, and bounded in each go");
    }

    #[test]
    fn renewed_sessions_are_looked_at_in_slices_too() {
        let expiry = Expiry::default();
        (0..25_000).for_each(|id| expiry.start(SessionId(id), 1_000));
        let opened = Instant::now();
        while opened.elapsed() < Duration::from_millis(2) {}
        for id in 0..25_000 {
            assert_eq!(expiry.renew(&LockTable::new(), SessionId(id)), Some(1_000));
        }
        let due = opened + Duration::from_millis(1_000);
        let looks = [(); 3].map(|()| expiry.take_due(due, NONE, 10));
        assert!(looks.iter().all(|(expired, _)| expired.is_empty()));
        let again = looks.map(|(_, next)| next.is_some_and(|next| next <= due));
        assert_eq!(again, [true, true, false], "it is looked again at once until all are seen");
    }

    #[test]
    fn a_session_without_a_timer_is_renewed_if_the_table_has_it() {
        let table = table_with(3, 1_000);
        let expiry = Expiry::default();
        expiry.take_over(&table);
        assert_eq!(expiry.renew(&table, SessionId(4)), None, "the table does not have it");
        assert_eq!(expiry.renew(&table, SessionId(3)), Some(1_000));
        let renewed = Instant::now();
        // It keeps the later moment when its slice comes, and has one timer.
        assert!(!expiry.take_over_more(&table, 10));
        assert_eq!(expiry.inner().due.len(), 3);
        let (expired, _) = expiry.take_due(renewed + Duration::from_millis(1_001), NONE, 10);
        assert_eq!(expired, [SessionId(1), SessionId(2), SessionId(3)]);
        for id in 1..=3 {
            assert_eq!(expiry.renew(&table, SessionId(id)), None, "its expiry is under way");
        }
    }

    #[test]
    fn an_expiry_under_way_is_not_forgotten_by_the_slices() {
        let table = table_with(2, 1_000);
        let expiry = Expiry::default();
        expiry.take_over(&table);
        assert!(expiry.take_over_more(&table, 1));
        let later = Instant::now() + Duration::from_secs(2);
        assert_eq!(expiry.take_due(later, NONE, 10).0, [SessionId(1)], "the other has no timer yet");
        assert_eq!(expiry.renew(&table, SessionId(1)), None);
        assert!(!expiry.take_over_more(&table, 1));
        assert_eq!(expiry.renew(&table, SessionId(1)), None);
        assert_eq!(expiry.renew(&table, SessionId(2)), Some(1_000));
    }

    #[test]
    fn a_session_that_ended_before_its_slice_gets_no_timer() {
        let mut table = table_with(2, 1_000);
        let expiry = Expiry::default();
        expiry.take_over(&table);
        let close = Command::CloseSession { session: SessionId(2) };
        table.apply(2, &Batch { now: CellTime(2), commands: vec![close] }).unwrap();
        expiry.forget(SessionId(2));
        assert!(!expiry.take_over_more(&table, 10));
        assert_eq!(expiry.renew(&table, SessionId(2)), None);
        assert_eq!(expiry.inner().due.len(), 1);
    }

    /// Sweeps of the heap cost no more than twice what was put in, however sessions end.
    #[test]
    fn forgetting_many_sessions_is_linear() {
        const COUNT: u128 = 200_000;
        for order in 0..3 {
            let expiry = Expiry::default();
            (0..COUNT).for_each(|id| expiry.start(SessionId(id), 1_000));
            if order == 2 {
                // Half of them are due and on their way, and end together with the others.
                let later = Instant::now() + Duration::from_secs(2);
                (0..10).for_each(|_| assert_eq!(expiry.take_due(later, NONE, 10_000).0.len(), 10_000));
            }
            for number in 0..COUNT {
                let id = if order == 0 { number } else { (number * 7_919) % COUNT };
                expiry.forget(SessionId(id));
            }
            let inner = expiry.inner();
            assert!(inner.swept <= 2 * COUNT as usize, "{} entries were looked at", inner.swept);
            assert!(inner.sessions.is_empty() && inner.due.len() <= SWEEP_ABOVE);
        }
    }
}
