//! The renewal task of a keeper: renews each lease at a third of its time to live, and reports jeopardy and losses.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use super::holdings::Due;
use super::{Leases, Recipe};
use crate::clock::{Moment, SLICE, sleep_towards};
use crate::error::Loss;
use crate::events::Event;
use crate::grant::Grant;

/// Runs until the keeper is dropped or closed.
pub(super) async fn run<R: Recipe>(leases: Weak<Leases<R>>, rescheduled: Arc<Notify>) {
    // Concurrent, so that a slow answer to one renewal delays no other.
    let mut renewals = FuturesUnordered::new();
    loop {
        let next = match leases.upgrade() {
            Some(leases) if !leases.runtime.is_closed() => {
                leases.check_states();
                for due in leases.holdings.take_due(Moment::now()) {
                    renewals.push(renew(Arc::clone(&leases), due));
                }
                // From here on, an acquire that adds an earlier lease notifies; leases added before are in `next`.
                leases.next_check.store(Moment::now().plus(SLICE).0, Ordering::Release);
                let next = leases.holdings.next_due();
                leases.next_check.store(next.min(Moment::now().plus(SLICE)).0, Ordering::Release);
                next
            }
            _ => return,
        };
        tokio::select! {
            Some(()) = renewals.next(), if !renewals.is_empty() => {}
            () = rescheduled.notified() => {}
            () = sleep_towards(next) => {}
        }
    }
}

async fn renew<R: Recipe>(leases: Arc<Leases<R>>, due: Due<R::Lease>) {
    let Due { number, grant, lease, ttl } = due;
    let sent = Moment::now();
    // An answer after the time to live is useless.
    let answer = tokio::time::timeout(ttl, leases.recipe.renew(&lease, ttl)).await;
    let retry_in = (ttl / 20).clamp(Duration::from_millis(10), Duration::from_secs(1));
    match answer.map(|answer| leases.observed(answer)) {
        Ok(Ok(true)) => {
            grant.deadline.renew(sent, ttl);
            leases.holdings.renewed(number, sent.plus(ttl / 3));
        }
        Ok(Ok(false)) => leases.lost(number, &grant, sent),
        Ok(Err(failure)) => {
            tracing::debug!(?failure, lock = %grant.name(), "failed to renew a lease: trying again");
            leases.holdings.renewed(number, Moment::now().plus(retry_in));
        }
        Err(_) => leases.holdings.renewed(number, Moment::now().plus(retry_in)),
    }
}

impl<R: Recipe> Leases<R> {
    /// Reports jeopardy, recovery and losses.
    fn check_states(self: &Arc<Self>) {
        let (events, lost) = self.holdings.check_states();
        for event in events {
            self.runtime.emit(event);
        }
        for number in lost {
            if let Some(held) = self.remove(number) {
                let why = held.grant.state().err().unwrap_or(Loss::SessionExpired);
                self.report_loss(&held.grant, why);
                self.spawn_release(held.lease, held.ttl);
            }
        }
    }

    /// Handles a lease that is no longer ours: it was taken away if it had not expired yet.
    fn lost(&self, number: u64, grant: &Grant, sent: Moment) {
        let in_time = grant.deadline.at().is_ok_and(|deadline| sent < deadline);
        let why = if in_time { Loss::TakenAway } else { Loss::SessionExpired };
        // During a release this is not a loss.
        if !self.holdings.is_releasing(number) && self.remove(number).is_some() && grant.lose(why) {
            self.report_loss(grant, why);
        }
    }

    fn report_loss(&self, grant: &Grant, why: Loss) {
        self.runtime.emit(Event::GrantLost {
            lock: grant.name().clone(),
            token: grant.token.unwrap_or_default().0,
            why: smol_str::format_smolstr!("{why}"),
        });
    }
}
