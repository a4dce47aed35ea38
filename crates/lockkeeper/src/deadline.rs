//! The client's own deadline (S4), shared by all guards of a session: a renewal updates one number, not every guard.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Moment;
use crate::error::Loss;

/// The moment until which a session's guards are certainly held.
#[derive(Debug)]
pub(crate) struct Deadline {
    /// Nanoseconds on [`Moment`]'s clock; 0 once the session is known to be lost.
    /// Invariant: it never moves back, and 0 is final.
    at: AtomicU64,
    /// The reason for the loss; valid once `at` is 0.
    why: AtomicU8,
    /// The session is suspended: in jeopardy before the deadline, until the engine confirms it again.
    suspended: AtomicBool,
    /// Notified when guards must check their state: on a loss, a suspension, or a renewal that ends a jeopardy. Not on
    /// other renewals.
    changed: watch::Sender<()>,
}

/// The end of a lease from its holder's view: counted from when the renewal was sent, less 1 % + 2 ms for clock drift. The
/// cell counts from when the renewal arrived, so the lease always ends later there.
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

    /// The deadline, or the reason for the loss.
    pub(crate) fn at(&self) -> Result<Moment, Loss> {
        match self.at.load(Ordering::Acquire) {
            0 => Err(Loss::from_u8(self.why.load(Ordering::Acquire))),
            at => Ok(Moment(at)),
        }
    }

    /// Extends the deadline after the acknowledgement of a renewal that was sent at `sent`.
    pub(crate) fn renew(&self, sent: Moment, ttl: Duration) {
        let new = deadline_of(sent, ttl).0;
        let before = self.at.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| match old {
            0 => None,
            old => Some(old.max(new)),
        });
        // Observers of guards in jeopardy sleep until the grace ends: wake them, because the guards are held again.
        let was_suspended = self.suspended.swap(false, Ordering::AcqRel);
        if was_suspended || before.is_ok_and(|old| old <= Moment::now().0) {
            self.notify();
        }
    }

    /// Marks the session as suspended until the next renewal. Returns false if it was suspended before.
    #[cfg(feature = "_sessions")]
    pub(crate) fn suspend(&self) -> bool {
        let is_first = !self.suspended.swap(true, Ordering::AcqRel);
        if is_first {
            self.notify();
        }
        is_first
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Acquire)
    }

    /// Marks the session as lost, for good.
    pub(crate) fn lose(&self, why: Loss) {
        if self.at.load(Ordering::Acquire) != 0 {
            self.why.store(why as u8, Ordering::Release);
            self.at.store(0, Ordering::Release);
        }
        self.notify();
    }

    /// Makes the observers of every guard check its state.
    pub(crate) fn notify(&self) {
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
    fn deadline_counts_from_sending_less_drift() {
        let sent = Moment(1_000_000_000);
        // 10 s less 100 ms less 2 ms.
        assert_eq!(deadline_of(sent, Duration::from_secs(10)), sent.plus(Duration::from_millis(9_898)));
    }

    #[test]
    fn late_answer_to_an_old_renewal_never_moves_the_deadline_back() {
        let sent = Moment::now();
        let deadline = Deadline::new(sent, Duration::from_secs(10));
        let first = deadline.at().unwrap();
        deadline.renew(Moment(sent.0 - 1_000_000), Duration::from_secs(10));
        assert_eq!(deadline.at().unwrap(), first);
    }

    #[cfg(feature = "_sessions")]
    #[test]
    fn suspension_ends_with_the_next_renewal_and_notifies() {
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
    fn loss_is_final() {
        let deadline = Deadline::new(Moment::now(), Duration::from_secs(10));
        deadline.lose(Loss::SessionExpired);
        deadline.renew(Moment::now(), Duration::from_secs(10));
        assert_eq!(deadline.at(), Err(Loss::SessionExpired));
        deadline.lose(Loss::Closed);
        assert_eq!(deadline.at(), Err(Loss::SessionExpired), "the first reason stays");
    }
}
