//! Grants whose answer has not been sent yet. If the caller disconnects before any of it was sent, nobody knows the
//! token, and the lock would stay held until its session ends. The grant is released instead.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::{Command, Grant, LockTable, Prospect, Reply, SessionId, Token};
use tokio::sync::oneshot;

use crate::effects::callers::Caller;
use crate::failure::{Failure, Outcome};
use crate::shared::Shared;

/// Maximum number of grants that are remembered until they are released.
const REMEMBERED_MAX: usize = 10_000;

/// Grants that this node is releasing because nobody received them. A release can be lost with the leadership. It names its
/// token and can be repeated at any time (S8), so the node proposes it again when it leads the next time. If another node leads
/// instead, the grant stays until its session ends.
#[derive(Debug, Default)]
pub(crate) struct GivenBack {
    // A fixed hash, so that simulations are repeatable. Clients do not choose the keys.
    grants: Mutex<HashMap<(SessionId, Token), Grant, BuildHasherDefault<DefaultHasher>>>,
}

impl GivenBack {
    fn grants(
        &self,
    ) -> MutexGuard<'_, HashMap<(SessionId, Token), Grant, BuildHasherDefault<DefaultHasher>>> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, session: SessionId, grant: &Grant) {
        let mut grants = self.grants();
        if grants.len() < REMEMBERED_MAX {
            grants.insert((session, grant.token), grant.clone());
        }
    }

    /// Returns the grants that the table still has, and forgets the others.
    fn still_held(&self, table: &LockTable) -> Vec<(SessionId, Grant)> {
        let mut grants = self.grants();
        grants.retain(|(session, _), grant| {
            releases(*session, grant).any(|release| table.prospect(&release) == Prospect::Ends)
        });
        grants.iter().map(|((session, _), grant)| (*session, grant.clone())).collect()
    }

    /// Forgets a grant of which a lock was freed, if it was the last one.
    pub(crate) fn freed(&self, table: &LockTable, session: SessionId, token: Token) {
        let mut grants = self.grants();
        let is_held = |grant: &Grant| {
            releases(session, grant).any(|release| table.prospect(&release) == Prospect::Ends)
        };
        if grants.get(&(session, token)).is_some_and(|grant| !is_held(grant)) {
            grants.remove(&(session, token));
        }
    }

    /// Reports whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.grants().is_empty()
    }
}

/// The commands that release a grant.
fn releases(session: SessionId, grant: &Grant) -> impl Iterator<Item = Command> + '_ {
    grant.locks.as_slice().iter().map(move |lock| Command::Release {
        session,
        lock: lock.clone(),
        token: grant.token,
        forget: true,
    })
}

impl Shared {
    /// Releases a grant that has no receiver. Otherwise it would be held until its session ends. A grant that its client can
    /// still fetch with its request id is released only once: after a change of leaders the client may hold it.
    pub(crate) fn give_back(&self, session: SessionId, grant: &Grant, has_client_id: bool) {
        if !has_client_id {
            self.given_back.remember(session, grant);
        }
        releases(session, grant).for_each(|release| self.submit(release, Caller::Nobody));
    }

    /// Forgets a grant whose release has no effect any more.
    pub(crate) fn note_ended_release(&self, command: &Command) {
        if let Command::Release { session, token, .. } = command
            && !self.given_back.is_empty()
        {
            self.given_back.freed(&self.table(), *session, *token);
        }
    }

    /// Proposes again what an earlier tenure of this leader gave back, and may not have released.
    pub(crate) fn give_back_again(&self) {
        let grants = self.given_back.still_held(&self.table());
        for (session, grant) in grants {
            releases(session, &grant).for_each(|release| self.submit(release, Caller::Nobody));
        }
    }
}

/// A grant whose answer is being sent. Released when the last clone is dropped, unless it was delivered.
#[derive(Clone)]
pub(crate) struct UndeliveredGrant(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    session: SessionId,
    grant: Grant,
    /// The client can fetch the grant with its request id.
    has_client_id: bool,
    keeps: AtomicBool,
}

impl UndeliveredGrant {
    /// Wraps a grant that is released unless it is delivered.
    pub(crate) fn new(
        shared: Arc<Shared>,
        session: SessionId,
        grant: Grant,
        has_client_id: bool,
    ) -> UndeliveredGrant {
        UndeliveredGrant(Arc::new(Inner {
            shared,
            session,
            grant,
            has_client_id,
            keeps: AtomicBool::new(false),
        }))
    }

    /// Marks the grant as delivered: the caller may know its token, so it is kept.
    pub(crate) fn delivered(&self) {
        self.0.keeps.store(true, Ordering::Relaxed);
    }
}

impl Deref for UndeliveredGrant {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.0.grant
    }
}

impl fmt::Debug for UndeliveredGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UndeliveredGrant").field(&self.0.grant).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !*self.keeps.get_mut() && !mutation::is_on(Mutation::KeepUndelivered) {
            self.shared.give_back(self.session, &self.grant, self.has_client_id);
        }
    }
}

/// The pending answer to an acquire. A grant that has arrived when this is dropped is released: its caller has
/// disconnected.
pub(crate) struct AwaitedGrant {
    pub(crate) shared: Arc<Shared>,
    pub(crate) session: SessionId,
    pub(crate) answer: oneshot::Receiver<Outcome>,
    /// False if the caller can fetch the grant later with its request id.
    pub(crate) gives_back: bool,
}

impl AwaitedGrant {
    /// Waits for the answer.
    pub(crate) async fn outcome(&mut self) -> Outcome {
        (&mut self.answer).await.unwrap_or_else(|_| Err(Failure::unknown("the node is stopping")))
    }
}

impl Drop for AwaitedGrant {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(Reply::Granted(grant))) = self.answer.try_recv()
            && self.gives_back
            && !mutation::is_on(Mutation::KeepUndelivered)
        {
            self.shared.give_back(self.session, &grant, false);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use lockkeeper_core::{Acquire, Batch, Locks, Mode};

    use super::*;
    use crate::metrics::Metrics;
    use crate::metrics::slow_acquires::SlowAcquireLog;

    const SESSION: SessionId = SessionId(7);

    pub(crate) fn shared() -> Arc<Shared> {
        let metrics = Metrics::new(crate::metrics::seconds());
        Arc::new(Shared::new(1, LockTable::new(), metrics, SlowAcquireLog::new(std::time::Duration::ZERO)))
    }

    pub(crate) fn undelivered(shared: &Arc<Shared>) -> UndeliveredGrant {
        UndeliveredGrant::new(shared.clone(), SESSION, grant(), false)
    }

    fn grant() -> Grant {
        Grant { locks: Locks::One("a".into()), token: Token(3), mode: Mode::Exclusive }
    }

    /// Whether the grant was released.
    pub(crate) fn given_back(shared: &Shared) -> bool {
        let queued = shared.queue.queued();
        assert!(queued <= 1);
        queued == 1
    }

    /// A release that was lost with the leadership is proposed again when this node leads again, until it is applied.
    #[test]
    fn lost_release_is_repeated_in_the_next_tenure() {
        let shared = shared();
        let apply = |command: Command| {
            let mut table = shared.table();
            let (index, now) = (table.applied() + 1, table.now());
            let batch = Batch { now, utc_ms: 0, commands: vec![command] };
            table.apply(index, &batch).unwrap().answers.remove(0)
        };
        let open =
            Command::OpenSession { session: SESSION, ttl_ms: 1_000, owner: "o".into(), identity: None };
        apply(open).unwrap();
        let acquire = Acquire::new(SESSION, Locks::many(["a".into(), "b".into()]));
        let Ok(Reply::Granted(grant)) = apply(Command::Acquire(acquire)) else { panic!("no grant") };
        shared.give_back(SESSION, &grant, false);
        assert_eq!(shared.queue.queued(), 2);
        shared.queue.refuse_queued(&Failure::no_leader());
        assert_eq!(shared.queue.queued(), 0, "the leadership is lost, and the releases with it");
        shared.give_back_again();
        assert_eq!(shared.queue.queued(), 2, "they are proposed again");
        shared.queue.refuse_queued(&Failure::no_leader());
        for (lock, is_forgotten) in [("a", false), ("b", true)] {
            let lock = lock.into();
            apply(Command::Release { session: SESSION, lock, token: grant.token, forget: true }).unwrap();
            shared.given_back.freed(&shared.table(), SESSION, grant.token);
            assert_eq!(shared.given_back.is_empty(), is_forgotten);
        }
        shared.give_back_again();
        assert_eq!(shared.queue.queued(), 0, "it was released");

        // Its client may have fetched it from another leader meanwhile.
        let Ok(Reply::Granted(grant)) =
            apply(Command::Acquire(Acquire::new(SESSION, Locks::One("c".into()))))
        else {
            panic!("no grant")
        };
        shared.give_back(SESSION, &grant, true);
        shared.queue.refuse_queued(&Failure::no_leader());
        shared.give_back_again();
        assert_eq!(shared.queue.queued(), 0, "a grant with a request id of its client is released once");
    }

    #[test]
    fn grant_is_released_unless_it_was_delivered() {
        let shared = shared();
        let undelivered = UndeliveredGrant::new(shared.clone(), SESSION, grant(), false);
        let other = undelivered.clone();
        other.delivered();
        drop((undelivered, other));
        assert!(!given_back(&shared));
        let undelivered = UndeliveredGrant::new(shared.clone(), SESSION, grant(), false);
        drop(undelivered.clone());
        assert!(!given_back(&shared), "one clone is left");
        drop(undelivered);
        assert!(given_back(&shared));
    }

    /// The grant was sent to the caller's channel, and the call is dropped before it receives it.
    #[test]
    fn grant_left_in_its_channel_is_released() {
        for gives_back in [true, false] {
            let shared = shared();
            let (sender, answer) = oneshot::channel();
            let awaited = AwaitedGrant { shared: shared.clone(), session: SESSION, answer, gives_back };
            sender.send(Ok(Reply::Granted(grant()))).unwrap();
            drop(awaited);
            assert_eq!(given_back(&shared), gives_back);
        }
    }

    #[tokio::test]
    async fn grant_received_from_its_channel_is_not_released_twice() {
        let shared = shared();
        let (sender, answer) = oneshot::channel();
        let mut awaited = AwaitedGrant { shared: shared.clone(), session: SESSION, answer, gives_back: true };
        sender.send(Ok(Reply::Granted(grant()))).unwrap();
        assert!(matches!(awaited.outcome().await, Ok(Reply::Granted(_))));
        drop(awaited);
        assert!(!given_back(&shared));
    }

    /// Ten times as many grants, or locks of one grant, cost at most twelve times as much to release.
    #[test]
    fn releases_of_undelivered_grants_cost_what_they_contain() {
        // A queue doubles: both counts are just below a power of two.
        const FEW: u64 = 1_600;
        let many_grants = |count: u64| {
            let shared = shared();
            let grants: Vec<_> = (0..count).map(|_| undelivered(&shared)).collect();
            (shared, grants)
        };
        let one_grant = |count: u64| {
            let shared = shared();
            let locks = Locks::many((0..count).map(|lock| format!("lock-{lock}").into()));
            let grant = UndeliveredGrant::new(shared.clone(), SESSION, Grant { locks, ..grant() }, false);
            (shared, vec![grant])
        };
        let cost = |(shared, grants): (Arc<Shared>, Vec<UndeliveredGrant>), count: u64| {
            let counted = allocation_counter::measure(|| drop(grants));
            assert_eq!(shared.queue.queued() as u64, count, "one release for each lock");
            counted.bytes_total
        };
        for (what, few, many) in [
            ("grants", cost(many_grants(FEW), FEW), cost(many_grants(10 * FEW), 10 * FEW)),
            ("locks", cost(one_grant(FEW), FEW), cost(one_grant(10 * FEW), 10 * FEW)),
        ] {
            assert!(
                few > 0 && many <= 12 * few,
                "{what}: {few} bytes allocated for {FEW}, {many} for ten times as many"
            );
        }
    }
}
