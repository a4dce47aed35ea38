//! Grants whose answer has not been sent yet. If the caller disconnects before any of it was sent, nobody knows the
//! token, and the lock would stay held until its session ends. The grant is released instead.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::{Grant, Reply, SessionId};
use tokio::sync::oneshot;

use crate::failure::{Failure, Outcome};
use crate::shared::Shared;

/// A grant whose answer is being sent. Released when the last clone is dropped, unless it was delivered.
#[derive(Clone)]
pub(crate) struct UndeliveredGrant(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    session: SessionId,
    grant: Grant,
    keeps: AtomicBool,
}

impl UndeliveredGrant {
    /// Wraps a grant that is released unless it is delivered.
    pub(crate) fn new(shared: Arc<Shared>, session: SessionId, grant: Grant) -> UndeliveredGrant {
        UndeliveredGrant(Arc::new(Inner { shared, session, grant, keeps: AtomicBool::new(false) }))
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
            self.shared.give_back(self.session, &self.grant);
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
            self.shared.give_back(self.session, &grant);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use lockkeeper_core::{LockTable, Locks, Mode, Token};

    use super::*;
    use crate::metrics::Metrics;
    use crate::metrics::slow_acquires::SlowAcquireLog;

    const SESSION: SessionId = SessionId(7);

    pub(crate) fn shared() -> Arc<Shared> {
        let metrics = Metrics::new(crate::metrics::seconds());
        Arc::new(Shared::new(1, LockTable::new(), metrics, SlowAcquireLog::new(std::time::Duration::ZERO)))
    }

    pub(crate) fn undelivered(shared: &Arc<Shared>) -> UndeliveredGrant {
        UndeliveredGrant::new(shared.clone(), SESSION, grant())
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

    #[test]
    fn grant_is_released_unless_it_was_delivered() {
        let shared = shared();
        let undelivered = UndeliveredGrant::new(shared.clone(), SESSION, grant());
        let other = undelivered.clone();
        other.delivered();
        drop((undelivered, other));
        assert!(!given_back(&shared));
        let undelivered = UndeliveredGrant::new(shared.clone(), SESSION, grant());
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
            let grant = UndeliveredGrant::new(shared.clone(), SESSION, Grant { locks, ..grant() });
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
