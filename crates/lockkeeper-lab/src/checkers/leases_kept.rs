//! No loss of a grant is reported before the promised end of its lease (S3, S4).

use super::Violation;
use super::history::History;

/// Checks every loss.
pub fn check(history: &History) -> Vec<Violation> {
    history
        .losses
        .iter()
        .filter(|loss| loss.told_at < loss.promised)
        .map(|loss| {
            format!(
                "client {} was told at {:?} that it lost {} (token {}): {}; the lease was promised until {:?}",
                loss.client, loss.told_at, loss.lock, loss.token, loss.why, loss.promised
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::history::Loss;
    use super::*;

    fn loss(told_at: u64, promised: u64) -> History {
        let (told_at, promised) = (Duration::from_secs(told_at), Duration::from_secs(promised));
        let loss = Loss { client: 1, lock: "a".into(), token: 1, told_at, promised, why: "not_held".into() };
        History { losses: vec![loss], ..History::default() }
    }

    #[test]
    fn loss_after_the_promised_time_passes() {
        assert_eq!(check(&loss(5, 5)), [""; 0]);
    }

    #[test]
    fn shortened_lease_is_detected() {
        assert_eq!(check(&loss(4, 5)).len(), 1);
    }
}
