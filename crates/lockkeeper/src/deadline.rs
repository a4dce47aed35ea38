//! The client's own deadline (S4), shared by all guards of one session: a renewal touches one number, not every guard.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
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
    /// The engine has taken back its word until it can be asked again: in jeopardy, although the moment has not come.
    suspended: AtomicBool,
    /// Told when guards must look again: a loss, a suspension, or a renewal that ends a jeopardy. Not told of plain renewals.
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
            suspended: AtomicBool::new(false),
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
        let was_suspended = self.suspended.swap(false, Ordering::AcqRel);
        if was_suspended || before.is_ok_and(|old| old <= Moment::now().0) {
            self.touch();
        }
    }

    /// Nobody knows whether the session lives, until the next renewal; false if that was known before.
    #[cfg(feature = "_sessions")]
    pub(crate) fn suspend(&self) -> bool {
        let is_first = !self.suspended.swap(true, Ordering::AcqRel);
        if is_first {
            self.touch();
        }
        is_first
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Acquire)
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

    #[cfg(feature = "_sessions")]
    #[test]
    fn a_suspension_ends_with_the_next_renewal_and_is_told() {
        let deadline = Deadline::new(Moment::now(), Duration::from_secs(10));
        let mut changed = deadline.subscribe();
        assert!(deadline.suspend() && deadline.is_suspended());
        assert!(changed.has_changed().unwrap());
        assert!(!deadline.suspend(), "once");
        changed.mark_unchanged();
        deadline.renew(Moment::now(), Duration::from_secs(10));
        assert!(!deadline.is_suspended() && changed.has_changed().unwrap());
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
