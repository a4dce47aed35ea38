//! Backpressure: slows the leader down for lagging followers, so that the cell survives its next failure.
//!
//! A majority is as fast as its fastest members. Without backpressure a slower member falls behind without bound, and when a
//! fast one fails, the cell commits nothing until the slow one has caught up. A member that stays behind, or is silent,
//! counts as down and does not slow the leader down. See docs/adr/0022-followers.md.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::raft::{Consensus, FollowerProgress, Progress};

/// A follower may lag by this many entries, which is two messages and a few syncs.
const LAG_MAX: u64 = 512;
/// A follower that has lagged by more for this long counts as down.
const DOWN_AFTER: Duration = Duration::from_secs(5);
/// The pause before an entry for each `LAG_MAX` of a follower's lag.
const PAUSE_STEP: Duration = Duration::from_millis(2);
/// The longest pause. Commands accumulate meanwhile, so that entries become fewer and larger.
const PAUSE_MAX: Duration = Duration::from_millis(40);
/// How often the pause is computed.
const UPDATE_EVERY: Duration = Duration::from_millis(5);

/// The pause before each entry.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Since when followers have lagged by more than `LAG_MAX`.
    behind_since: BTreeMap<u64, Instant>,
    updated_at: Option<Instant>,
    pause: Duration,
}

impl Pace {
    /// Returns how long to wait before the next entry is proposed.
    pub(crate) fn pause(&mut self, consensus: &Consensus) -> Duration {
        let now = Instant::now();
        if self.updated_at.is_none_or(|updated_at| now.saturating_duration_since(updated_at) >= UPDATE_EVERY)
        {
            self.updated_at = Some(now);
            self.pause = self.compute(now, &consensus.progress());
        }
        self.pause
    }

    fn compute(&mut self, now: Instant, progress: &Progress) -> Duration {
        self.behind_since.retain(|id, _| progress.followers.iter().any(|follower| follower.node_id == *id));
        let up = progress.followers.iter().filter(|follower| self.is_up(now, follower));
        let mut lags: Vec<u64> = up.map(|follower| follower.lag).collect();
        lags.sort_unstable();
        // A majority needs half of the voters besides the leader, and one more after the loss of the fastest.
        match lags.get(progress.voters / 2) {
            Some(lag) if *lag > LAG_MAX => {
                let steps = u32::try_from(lag / LAG_MAX).unwrap_or(u32::MAX);
                PAUSE_STEP.saturating_mul(steps).min(PAUSE_MAX)
            }
            _ => Duration::ZERO,
        }
    }

    /// Whether a follower keeps up, or may catch up soon.
    fn is_up(&mut self, now: Instant, follower: &FollowerProgress) -> bool {
        if follower.lag <= LAG_MAX {
            self.behind_since.remove(&follower.node_id);
            return true;
        }
        let since = *self.behind_since.entry(follower.node_id).or_insert(now);
        !follower.is_silent && now.saturating_duration_since(since) <= DOWN_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(lags: &[u64]) -> Progress {
        let follower = |(place, lag): (usize, &u64)| FollowerProgress {
            node_id: place as u64 + 2,
            lag: *lag,
            is_silent: false,
        };
        Progress { voters: lags.len() + 1, followers: lags.iter().enumerate().map(follower).collect() }
    }

    #[test]
    fn leader_waits_for_the_follower_that_a_majority_needs_after_the_next_failure() {
        let mut pace = Pace::default();
        let now = Instant::now();
        let mut pause = |lags: &[u64]| pace.compute(now, &progress(lags));
        assert_eq!(pause(&[]), Duration::ZERO, "a cell of one");
        assert_eq!(pause(&[9_000]), Duration::ZERO, "a cell of two needs both for a majority");
        assert_eq!(pause(&[0, LAG_MAX]), Duration::ZERO);
        assert_eq!(pause(&[0, LAG_MAX + 1]), PAUSE_STEP);
        assert_eq!(pause(&[0, 3 * LAG_MAX]), 3 * PAUSE_STEP);
        assert_eq!(pause(&[1_000_000, 0]), PAUSE_MAX);
        assert_eq!(
            pause(&[0, 0, 0, 9_000]),
            Duration::ZERO,
            "five nodes survive a failure without the slowest"
        );
        assert_eq!(pause(&[0, 0, LAG_MAX + 1, 9_000]), PAUSE_STEP);
    }

    #[test]
    fn follower_that_stays_behind_counts_as_down_until_it_has_caught_up() {
        let mut pace = Pace::default();
        let began = Instant::now();
        assert_eq!(pace.compute(began, &progress(&[0, 5_000])), 9 * PAUSE_STEP);
        assert_eq!(pace.compute(began + DOWN_AFTER, &progress(&[0, 5_000])), 9 * PAUSE_STEP);
        let later = began + DOWN_AFTER + Duration::from_millis(1);
        assert_eq!(pace.compute(later, &progress(&[0, 5_000])), Duration::ZERO);
        assert_eq!(pace.compute(later, &progress(&[0, LAG_MAX])), Duration::ZERO);
        assert_eq!(pace.compute(later, &progress(&[0, LAG_MAX + 1])), PAUSE_STEP, "it had caught up");
    }

    #[test]
    fn silent_follower_does_not_slow_the_leader_down() {
        let mut pace = Pace::default();
        let mut silent = progress(&[0, 5_000]);
        silent.followers[1].is_silent = true;
        assert_eq!(pace.compute(Instant::now(), &silent), Duration::ZERO);
    }
}
