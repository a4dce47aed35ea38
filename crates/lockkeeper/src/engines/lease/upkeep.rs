//! The one task of a keeper: renews what is held at a third of its time to live, and tells what the clock brings.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use super::holdings::Due;
use super::{Inner, Store};
use crate::clock::{Moment, SLICE, sleep_towards};
use crate::error::Loss;
use crate::events::Event;
use crate::grant::Grant;

/// Runs until the keeper is gone or closed.
pub(super) async fn run<S: Store>(keeper: Weak<Inner<S>>, rescheduled: Arc<Notify>) {
    // A slow answer to one renewal keeps no other waiting.
    let mut renewals = FuturesUnordered::new();
    loop {
        let next = match keeper.upgrade() {
            Some(inner) if !inner.is_closed() => {
                inner.look();
                for due in inner.holdings.take_due(Moment::now()) {
                    renewals.push(renew(Arc::clone(&inner), due));
                }
                // From here on whoever adds something that is due earlier says so; what was added before is in `next`.
                inner.looks_at.store(Moment::now().plus(SLICE).0, Ordering::Release);
                let next = inner.holdings.next_look();
                inner.looks_at.store(next.min(Moment::now().plus(SLICE)).0, Ordering::Release);
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

async fn renew<S: Store>(inner: Arc<Inner<S>>, due: Due<S::Lease>) {
    let Due { number, grant, lease, ttl } = due;
    let sent = Moment::now();
    // An answer that comes later than this is of no use any more.
    let answer = tokio::time::timeout(ttl, inner.store.renew(&lease, ttl)).await;
    let retry_in = (ttl / 20).clamp(Duration::from_millis(10), Duration::from_secs(1));
    match answer.map(|answer| inner.heard(answer)) {
        Ok(Ok(true)) => {
            grant.deadline.renew(sent, ttl);
            inner.holdings.renewed(number, sent.plus(ttl / 3));
        }
        Ok(Ok(false)) => inner.lost(number, &grant, sent),
        Ok(Err(error)) => {
            tracing::debug!(%error, lock = %grant.name(), "a renewal failed: it is tried again");
            inner.holdings.renewed(number, Moment::now().plus(retry_in));
        }
        Err(_) => inner.holdings.renewed(number, Moment::now().plus(retry_in)),
    }
}

impl<S: Store> Inner<S> {
    /// What the clock has brought.
    fn look(self: &Arc<Self>) {
        let (events, lost) = self.holdings.look();
        for event in events {
            let _ = self.events.send(event);
        }
        for number in lost {
            if let Some(held) = self.holdings.remove(number) {
                let why = held.grant.state().err().unwrap_or(Loss::SessionExpired);
                self.tell_lost(&held.grant, why);
                self.give_in_background(held.lease, held.ttl);
            }
        }
    }

    /// The server says that it is not ours any more. Somebody took it away if its time was not over yet.
    fn lost(&self, number: u64, grant: &Grant, asked: Moment) {
        let in_time = grant.deadline.at().is_ok_and(|deadline| asked < deadline);
        let why = if in_time { Loss::TakenAway } else { Loss::SessionExpired };
        // A release on its way is no loss.
        if self.holdings.remove_lost(number) && grant.lose(why) {
            self.tell_lost(grant, why);
        }
    }

    fn tell_lost(&self, grant: &Grant, why: Loss) {
        let _ = self.events.send(Event::GrantLost {
            lock: grant.name().clone(),
            token: grant.token.unwrap_or_default().0,
            why: smol_str::format_smolstr!("{why}"),
        });
    }
}
