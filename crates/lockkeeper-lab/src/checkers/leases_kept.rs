//! Nobody is told that a grant is lost before the time that it was promised for is over (S3, S4).

use super::Violation;
use super::history::History;

/// Looks at every loss.
pub fn check(history: &History) -> Vec<Violation> {
    history
        .losses
        .iter()
        .filter(|loss| loss.told < loss.promised)
        .map(|loss| {
            format!(
                "client {} was told at {:?} that it has lost {} (token {}): {}; it had been promised until {:?}",
                loss.client, loss.told, loss.lock, loss.token, loss.why, loss.promised
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::history::Loss;
    use super::*;

    fn loss(told: u64, promised: u64) -> History {
        let (told, promised) = (Duration::from_secs(told), Duration::from_secs(promised));
        let loss = Loss { client: 1, lock: "a".into(), token: 1, told, promised, why: "not_held".into() };
        History { losses: vec![loss], ..History::default() }
    }

    #[test]
    fn a_loss_after_its_time_is_fine() {
        assert_eq!(check(&loss(5, 5)), [""; 0]);
    }

    #[test]
    fn a_lease_that_was_shortened_is_caught() {
        assert_eq!(check(&loss(4, 5)).len(), 1);
    }
}
