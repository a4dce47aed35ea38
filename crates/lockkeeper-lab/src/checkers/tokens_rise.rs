//! No token is given twice, and a grant that was asked for after another was answered has a higher one.

use std::collections::HashMap;

use super::Violation;
use super::history::{Grant, History};

/// Looks at all grants of the cell: there is one counter for all locks.
pub fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut seen: HashMap<u64, &Grant> = HashMap::new();
    for grant in &history.grants {
        if let Some(before) = seen.insert(grant.token, grant) {
            violations.push(format!(
                "token {} was given twice: to client {} for {} and to client {} for {}",
                grant.token, before.client, before.lock, grant.client, grant.lock
            ));
        }
    }
    let mut by_answer: Vec<&Grant> = history.grants.iter().collect();
    by_answer.sort_by_key(|grant| grant.answered);
    let mut by_asking = by_answer.clone();
    by_asking.sort_by_key(|grant| grant.asked);
    let mut answered = by_answer.into_iter().peekable();
    let mut highest: Option<&Grant> = None;
    for grant in by_asking {
        while let Some(earlier) = answered.next_if(|earlier| earlier.answered < grant.asked) {
            if highest.is_none_or(|highest| highest.token < earlier.token) {
                highest = Some(earlier);
            }
        }
        if let Some(highest) = highest.filter(|highest| highest.token > grant.token) {
            violations.push(format!(
                "token {} of {} was asked for at {:?}, after token {} had been answered at {:?}",
                grant.token, grant.lock, grant.asked, highest.token, highest.answered
            ));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn grant(token: u64, asked: u64, answered: u64) -> Grant {
        let ms = Duration::from_millis;
        Grant { client: 1, lock: "a".to_owned(), token, asked: ms(asked), answered: ms(answered) }
    }

    fn check_grants(grants: Vec<Grant>) -> usize {
        check(&History { grants, ..History::default() }).len()
    }

    #[test]
    fn what_overlaps_may_come_in_any_order() {
        assert_eq!(check_grants(vec![grant(2, 0, 10), grant(1, 5, 15), grant(3, 16, 20)]), 0);
    }

    #[test]
    fn a_token_given_twice_is_caught() {
        assert_eq!(check_grants(vec![grant(1, 0, 10), grant(1, 5, 15)]), 1);
    }

    #[test]
    fn a_token_that_falls_is_caught() {
        assert_eq!(check_grants(vec![grant(5, 0, 10), grant(4, 11, 15)]), 1);
        // Also if others are in between, and if the history is not in order.
        assert_eq!(check_grants(vec![grant(4, 30, 35), grant(6, 12, 40), grant(5, 0, 10)]), 1);
    }
}
