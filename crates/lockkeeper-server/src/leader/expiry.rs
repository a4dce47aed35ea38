//! Session timers, which only the leader has. A renewal is one write to memory and never enters the log.
//!
//! The heap has one entry per session, with the earliest time at which it can be due. A renewal does not change the heap:
//! when the entry comes up, the session is either due or gets a later entry.
//!
//! The timers are divided into shards, each with its own map and heap. A map or heap that grows, and a sweep of stale heap
//! entries, visit one shard: with a million sessions in one map, each would stall the node.
//!
//! A new leader does not visit all sessions before it serves: with a million of them that would be a long stall. It
//! records the time of the take-over, and the timer task creates the timers in slices. Until it has a timer, a session
//! counts as renewed at the take-over, and cannot expire.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::session::Session;
use lockkeeper_core::{LockTable, SessionId};
use tokio::time::Instant;

/// Number of shards. With a million sessions, each has 16,000.
const SHARDS: usize = 64;

/// Number of stale heap entries of a shard that do not justify a sweep.
const SWEEP_THRESHOLD: usize = 16;

/// Maximum number of heap entries that are visited in one pass. Most belong to renewed sessions and get a later entry.
const VISITED_MAX: usize = 10_000;

/// Timers of all sessions.
#[derive(Debug, Default)]
pub struct Expiry {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The session IDs are random, so the shards have about the same size.
    shards: [Shard; SHARDS],
    /// The shard at which the next pass begins: a pass with a limit may not reach all.
    begins_at: usize,
    /// `Some` while sessions of the table may lack a timer.
    taking_over: Option<TakeOver>,
}

impl Default for Inner {
    fn default() -> Inner {
        Inner { shards: std::array::from_fn(|_| Shard::default()), begins_at: 0, taking_over: None }
    }
}

/// Timers of a part of the sessions.
#[derive(Debug, Default)]
struct Shard {
    sessions: HashMap<SessionId, Timer>,
    due: BinaryHeap<Reverse<(Instant, SessionId)>>,
    /// Heap entries visited by sweeps.
    #[cfg(test)]
    swept: usize,
    /// Heap entries visited by the longest sweep.
    #[cfg(test)]
    longest_sweep: usize,
}

#[derive(Debug, Clone, Copy)]
struct TakeOver {
    /// Time at which the leader took over.
    since: Instant,
    /// All sessions of the table with lower IDs have timers.
    next: SessionId,
}

#[derive(Debug, Clone, Copy)]
struct Timer {
    ttl: Duration,
    renewed: Instant,
    /// An expiry is in flight: no renewal is acknowledged any more (S3).
    expiring: bool,
}

impl Expiry {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives every session a full TTL from now on, on a new leader. [`Expiry::take_over_more`] creates the timers.
    pub fn take_over(&self, table: &LockTable) {
        let count = table.counts().sessions as usize;
        let mut inner = self.inner();
        // Capacity for all sessions, so that hardly any slice has to reallocate.
        let capacity = count / SHARDS + count / SHARDS / 8;
        for shard in &mut inner.shards {
            *shard = Shard::with_capacity(capacity);
        }
        inner.taking_over = Some(TakeOver { since: Instant::now(), next: SessionId(0) });
    }

    /// Creates the timers of up to `limit` more sessions of the table. Returns false when all sessions have timers.
    pub fn take_over_more(&self, table: &LockTable, limit: usize) -> bool {
        let mut inner = self.inner();
        let Some(TakeOver { since, next }) = inner.taking_over else { return false };
        let mut sessions = table.sessions_from(next);
        for (id, session) in sessions.by_ref().take(limit) {
            inner.adopt(id, session, since);
        }
        inner.taking_over = sessions.next().map(|(next, _)| TakeOver { since, next });
        inner.taking_over.is_some()
    }

    /// Drops all timers when this node no longer leads.
    pub fn stop(&self) {
        *self.inner() = Inner::default();
    }

    /// Starts a session's TTL, after it was opened or an expiry of it was stale.
    pub fn start(&self, session: SessionId, ttl_ms: u64) {
        self.inner().start(session, Duration::from_millis(ttl_ms), Instant::now());
    }

    /// Removes the timer of a session that has ended.
    pub fn forget(&self, session: SessionId) {
        self.inner().shard(session).forget(session);
    }

    /// Renews a session of this table. Returns its TTL, or `None` if the session is lost or its expiry is in flight.
    ///
    /// The caller keeps the table locked, so that a session without a timer cannot end before it gets one: a session is
    /// first removed from the table, and then from here with [`Expiry::forget`] (S3).
    pub fn renew(&self, table: &LockTable, session: SessionId) -> Option<u64> {
        let mut inner = self.inner();
        if let Some(TakeOver { since, .. }) = inner.taking_over
            && let Some(alive) = table.session(session)
        {
            inner.adopt(session, alive, since);
        }
        let timer = inner
            .shard(session)
            .sessions
            .get_mut(&session)
            .filter(|timer| !timer.expiring || mutation::is_on(Mutation::RenewWhileExpiring))?;
        timer.renewed = Instant::now();
        Some(timer.ttl.as_millis() as u64)
    }

    /// Returns the time until a session expires if it is not renewed. Known only on the leader, once the session has a timer.
    pub fn remaining_ms(&self, session: SessionId) -> Option<u64> {
        let mut inner = self.inner();
        let timer = inner.shard(session).sessions.get(&session)?;
        Some(timer.ttl.saturating_sub(timer.renewed.elapsed()).as_millis() as u64)
    }

    /// Takes up to `limit` sessions that have been due for `grace`. Also returns the time of the next check. Renewals of
    /// the taken sessions are refused from now on.
    pub fn take_due(&self, now: Instant, grace: Duration, limit: usize) -> (Vec<SessionId>, Option<Instant>) {
        let mut inner = self.inner();
        let mut pass = Pass { now, grace, limit, expired: Vec::new(), visited: 0 };
        let begins_at = inner.begins_at;
        for turn in 0..SHARDS {
            let place = (begins_at + turn) % SHARDS;
            if !inner.shards[place].take_due(&mut pass) {
                // The next pass goes on here.
                inner.begins_at = place;
                break;
            }
        }
        let next = inner.shards.iter().filter_map(|shard| shard.due.peek()).map(|Reverse((due, _))| *due);
        (pass.expired, next.min().map(|due| due + grace))
    }
}

/// One pass over the sessions that are due.
struct Pass {
    now: Instant,
    grace: Duration,
    limit: usize,
    expired: Vec<SessionId>,
    visited: usize,
}

impl Shard {
    fn with_capacity(capacity: usize) -> Shard {
        // In tests it has more fields.
        #[allow(clippy::needless_update)]
        Shard {
            sessions: HashMap::with_capacity(capacity),
            due: BinaryHeap::with_capacity(capacity),
            ..Shard::default()
        }
    }

    /// Takes the sessions that are due. Returns false if some may be left because of a limit.
    fn take_due(&mut self, pass: &mut Pass) -> bool {
        while let Some(&Reverse((due, session))) = self.due.peek() {
            if due + pass.grace > pass.now {
                break;
            }
            if pass.expired.len() >= pass.limit || pass.visited >= VISITED_MAX {
                return false;
            }
            pass.visited += 1;
            self.due.pop();
            let Some(timer) = self.sessions.get_mut(&session) else { continue };
            let really_due = timer.renewed + timer.ttl;
            if timer.expiring {
                continue;
            }
            if really_due + pass.grace > pass.now {
                self.due.push(Reverse((really_due, session)));
                continue;
            }
            timer.expiring = true;
            pass.expired.push(session);
        }
        true
    }

    /// Removes the timer of a session.
    ///
    /// Heap entries of ended sessions stay until they come up; a sweep removes them if there are too many. A session has at
    /// most one entry, so a sweep removes at least half of the entries that it visits, and all sweeps together visit at most
    /// twice as many entries as were ever created.
    fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        if self.due.len() > 2 * self.sessions.len() + SWEEP_THRESHOLD {
            #[cfg(test)]
            {
                self.swept += self.due.len();
                self.longest_sweep = self.longest_sweep.max(self.due.len());
            }
            let Shard { sessions, due, .. } = self;
            due.retain(|Reverse((_, id))| sessions.contains_key(id));
        }
    }

    fn start(&mut self, session: SessionId, ttl: Duration, now: Instant) {
        let known = self.sessions.insert(session, Timer { ttl, renewed: now, expiring: false });
        // A session that was not expiring still has a heap entry.
        if known.is_none_or(|timer| timer.expiring) {
            self.due.push(Reverse((now + ttl, session)));
        }
    }
}

impl Inner {
    /// Creates the timer of a session that existed when this leader took over, unless it has one.
    fn adopt(&mut self, id: SessionId, session: &Session, since: Instant) {
        if self.shard(id).sessions.contains_key(&id) {
            return;
        }
        let short = mutation::is_on(Mutation::ShortTimeAtTakeOver);
        let ttl_ms = if short { session.ttl_ms / 4 } else { session.ttl_ms };
        self.start(id, Duration::from_millis(ttl_ms), since);
    }

    fn start(&mut self, session: SessionId, ttl: Duration, now: Instant) {
        self.shard(session).start(session, ttl, now);
    }

    fn shard(&mut self, session: SessionId) -> &mut Shard {
        &mut self.shards[(session.0 % SHARDS as u128) as usize]
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Batch, CellTime, Command};

    use super::*;

    const SESSION: SessionId = SessionId(7);
    const NONE: Duration = Duration::ZERO;

    /// The number of timers.
    fn sessions(expiry: &Expiry) -> usize {
        expiry.inner().shards.iter().map(|shard| shard.sessions.len()).sum()
    }

    /// The number of heap entries.
    fn due(expiry: &Expiry) -> usize {
        expiry.inner().shards.iter().map(|shard| shard.due.len()).sum()
    }

    #[test]
    fn a_session_is_due_after_its_time_and_not_before() {
        let expiry = Expiry::default();
        expiry.start(SESSION, 1_000);
        let now = Instant::now();
        assert_eq!(expiry.take_due(now, NONE, 10).0, []);
        assert_eq!(expiry.take_due(now + Duration::from_millis(1_001), NONE, 10).0, [SESSION]);
    }

    #[test]
    fn a_renewal_postpones_the_expiry() {
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
    fn a_late_node_accepts_renewals_during_the_grace() {
        let expiry = Expiry::default();
        expiry.start(SESSION, 100);
        let (later, grace) = (Instant::now() + Duration::from_millis(200), Duration::from_secs(1));
        let (expired, next) = expiry.take_due(later, grace, 10);
        assert_eq!(expired, []);
        assert!(next.is_some_and(|next| next > later), "it is checked again when the grace is over");
        assert_eq!(expiry.renew(&LockTable::new(), SESSION), Some(100), "the TTL is not extended");
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
        let batch = Batch { now: CellTime(1), utc_ms: 0, commands: (1..=sessions).map(open).collect() };
        let applied = table.apply(1, &batch).unwrap();
        assert!(applied.answers.iter().all(Result::is_ok), "all were opened");
        table
    }

    #[test]
    fn a_new_leader_creates_timers_in_slices_and_gives_every_session_a_full_ttl() {
        let table = table_with(25_000, 1_000);
        let expiry = Expiry::default();
        expiry.take_over(&table);
        let took_over = Instant::now();
        assert_eq!(sessions(&expiry), 0, "the take-over itself visits none");
        let mut slices = Vec::new();
        loop {
            let before = sessions(&expiry);
            let more = expiry.take_over_more(&table, 10_000);
            slices.push(sessions(&expiry) - before);
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
        assert_eq!(expired, [10_000, 10_000, 5_000, 0], "each session once, and bounded in each pass");
    }

    #[test]
    fn renewed_sessions_are_visited_in_slices() {
        let expiry = Expiry::default();
        (0..25_000).for_each(|id| expiry.start(SessionId(id), 1_000));
        let opened = Instant::now();
        while opened.elapsed() < Duration::from_millis(2) {}
        for id in 0..25_000 {
            assert_eq!(expiry.renew(&LockTable::new(), SessionId(id)), Some(1_000));
        }
        let due = opened + Duration::from_millis(1_000);
        let passes = [(); 3].map(|()| expiry.take_due(due, NONE, 10));
        assert!(passes.iter().all(|(expired, _)| expired.is_empty()));
        let again = passes.map(|(_, next)| next.is_some_and(|next| next <= due));
        assert_eq!(again, [true, true, false], "the next pass is due at once until all are visited");
    }

    #[test]
    fn a_session_without_a_timer_is_renewed_if_the_table_has_it() {
        let table = table_with(3, 1_000);
        let expiry = Expiry::default();
        expiry.take_over(&table);
        assert_eq!(expiry.renew(&table, SessionId(4)), None, "the table does not have it");
        assert_eq!(expiry.renew(&table, SessionId(3)), Some(1_000));
        let renewed = Instant::now();
        // Its slice keeps the later expiry, and adds no second timer.
        assert!(!expiry.take_over_more(&table, 10));
        assert_eq!(due(&expiry), 3);
        let (expired, _) = expiry.take_due(renewed + Duration::from_millis(1_001), NONE, 10);
        assert_eq!(expired, [SessionId(1), SessionId(2), SessionId(3)]);
        for id in 1..=3 {
            assert_eq!(expiry.renew(&table, SessionId(id)), None, "its expiry is in flight");
        }
    }

    #[test]
    fn an_expiry_in_flight_survives_later_slices() {
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
        table.apply(2, &Batch { now: CellTime(2), utc_ms: 0, commands: vec![close] }).unwrap();
        expiry.forget(SessionId(2));
        assert!(!expiry.take_over_more(&table, 10));
        assert_eq!(expiry.renew(&table, SessionId(2)), None);
        assert_eq!(due(&expiry), 1);
    }

    /// Sweeps visit at most twice as many entries as were created, in whatever order sessions end.
    #[test]
    fn forgetting_many_sessions_is_linear() {
        const COUNT: u128 = 200_000;
        for order in 0..3 {
            let expiry = Expiry::default();
            (0..COUNT).for_each(|id| expiry.start(SessionId(id), 1_000));
            if order == 2 {
                // Half of the sessions are expiring, and end together with the others.
                let later = Instant::now() + Duration::from_secs(2);
                (0..10).for_each(|_| assert_eq!(expiry.take_due(later, NONE, 10_000).0.len(), 10_000));
            }
            for number in 0..COUNT {
                let id = if order == 0 { number } else { (number * 7_919) % COUNT };
                expiry.forget(SessionId(id));
            }
            let swept: usize = expiry.inner().shards.iter().map(|shard| shard.swept).sum();
            assert!(swept <= 2 * COUNT as usize, "{swept} entries were visited");
            let longest = expiry.inner().shards.iter().map(|shard| shard.longest_sweep).max();
            let bound = 2 * COUNT as usize / SHARDS;
            assert!(longest <= Some(bound), "{longest:?} entries were visited at once");
            assert_eq!(sessions(&expiry), 0);
            assert!(due(&expiry) <= SHARDS * SWEEP_THRESHOLD);
        }
    }

    /// A pass with a limit goes on where the last one has ended, so that no session waits for all others.
    #[test]
    fn sessions_of_all_shards_take_turns() {
        let expiry = Expiry::default();
        (0..SHARDS as u128 * 10).for_each(|id| expiry.start(SessionId(id), 1_000));
        let late = Instant::now() + Duration::from_secs(2);
        let mut expired = Vec::new();
        for _ in 0..=SHARDS {
            let (some, next) = expiry.take_due(late, NONE, 10);
            assert!(next.is_none_or(|next| next <= late), "the next pass is due at once");
            expired.extend(some);
            // An earlier shard gets more.
            let id = expired.len() as u128 * SHARDS as u128;
            expiry.start(SessionId(id + 1_000_000 * SHARDS as u128), 1);
        }
        let of_last = |id: &&SessionId| id.0 % SHARDS as u128 == SHARDS as u128 - 1;
        assert_eq!(expired.iter().filter(of_last).count(), 10);
    }
}
