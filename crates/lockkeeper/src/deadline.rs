//! The client's own deadline (S4), shared by all guards of one session: a renewal touches one number, not every guard.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Moment;
use crate::error::Loss;

/// The moment until which a session's guards are surely held.
#[derive(Debug)]
pub(crate) struct Deadline {
    /// Nanoseconds on our clock; 0 once the session is known to be lost.
    /// Invariant: it never moves back, and 0 is final.
    at: AtomicU64,
    /// Why it was lost; meaningful once `at` is 0.
    why: AtomicU8,
    /// Told when guards must look again: a loss, or a renewal that ends a jeopardy. Not told of plain renewals.
    changed: watch::Sender<()>,
}

/// The end of a lease as its holder must see it: counted from when the renewal was sent, less 1 % and 2 ms for clocks
/// that run at different speeds. The cell counts from when the renewal arrived, so it always ends later.
pub(crate) fn deadline_of(sent: Moment, ttl: Duration) -> Moment {
    sent.plus(ttl.saturating_sub(ttl / 100 + Duration::from_millis(2)))
}

impl Deadline {
    pub(crate) fn new(sent: Moment, ttl: Duration) -> Deadline {
        Deadline {
            at: AtomicU64::new(deadline_of(sent, ttl).0.max(1)),
            why: AtomicU8::new(0),
            changed: watch::Sender::new(()),
        }
    }

    /// The moment, or why there is none any more.
    pub(crate) fn at(&self) -> Result<Moment, Loss> {
        match self.at.load(Ordering::Acquire) {
            0 => Err(Loss::from_u8(self.why.load(Ordering::Acquire))),
            at => Ok(Moment(at)),
        }
    }

    /// A renewal that was sent at `sent` has been acknowledged.
    pub(crate) fn renew(&self, sent: Moment, ttl: Duration) {
        let new = deadline_of(sent, ttl).0;
        let before = self.at.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| match old {
            0 => None,
            old => Some(old.max(new)),
        });
        // Those who look at guards in jeopardy sleep until the grace is over: tell them that it is held again.
        if before.is_ok_and(|old| old <= Moment::now().0) {
            self.touch();
        }
    }

    /// The session is lost, for good.
    pub(crate) fn lose(&self, why: Loss) {
        if self.at.load(Ordering::Acquire) != 0 {
            self.why.store(why as u8, Ordering::Release);
            self.at.store(0, Ordering::Release);
        }
        self.touch();
    }

    /// Makes every guard look again.
    pub(crate) fn touch(&self) {
        self.changed.send_replace(());
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_is_counted_from_sending_less_drift() {
        let sent = Moment(1_000_000_000);
        // 10 s less 100 ms less 2 ms.
        assert_eq!(deadline_of(sent, Duration::from_secs(10)), sent.plus(Duration::from_millis(9_898)));
    }

    #[test]
    fn a_late_answer_to_an_old_renewal_never_moves_it_back() {
        let sent = Moment::now();
        let deadline = Deadline::new(sent, Duration::from_secs(10));
        let first = deadline.at().unwrap();
        deadline.renew(Moment(sent.0 - 1_000_000), Duration::from_secs(10));
        assert_eq!(deadline.at().unwrap(), first);
    }

    #[test]
    fn a_loss_is_final() {
        let deadline = Deadline::new(Moment::now(), Duration::from_secs(10));
        deadline.lose(Loss::SessionExpired);
        deadline.renew(Moment::now(), Duration::from_secs(10));
        assert_eq!(deadline.at(), Err(Loss::SessionExpired));
        deadline.lose(Loss::Closed);
        assert_eq!(deadline.at(), Err(Loss::SessionExpired), "the first reason stays");
    }
}
