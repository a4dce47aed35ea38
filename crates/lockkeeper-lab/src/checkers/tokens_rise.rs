//! Tokens are unique, and a grant that was invoked after another returned has a higher token.

use std::collections::HashMap;

use super::Violation;
use super::history::{Grant, History};

/// Checks all grants of the cell together: there is one counter for all locks.
pub fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut seen: HashMap<u64, &Grant> = HashMap::new();
    for grant in &history.grants {
        if let Some(before) = seen.insert(grant.token, grant) {
            violations.push(format!(
                "token {} was granted twice: to client {} for {} and to client {} for {}",
                grant.token, before.client, before.lock, grant.client, grant.lock
            ));
        }
    }
    let mut by_return: Vec<&Grant> = history.grants.iter().collect();
    by_return.sort_by_key(|grant| grant.returned);
    let mut by_invocation = by_return.clone();
    by_invocation.sort_by_key(|grant| grant.invoked);
    let mut returned = by_return.into_iter().peekable();
    let mut highest: Option<&Grant> = None;
    for grant in by_invocation {
        while let Some(earlier) = returned.next_if(|earlier| earlier.returned < grant.invoked) {
            if highest.is_none_or(|highest| highest.token < earlier.token) {
                highest = Some(earlier);
            }
        }
        if let Some(highest) = highest.filter(|highest| highest.token > grant.token) {
            violations.push(format!(
                "token {} of {} was requested at {:?}, after token {} was granted at {:?}",
                grant.token, grant.lock, grant.invoked, highest.token, highest.returned
            ));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn grant(token: u64, invoked: u64, returned: u64) -> Grant {
        let ms = Duration::from_millis;
        Grant { client: 1, lock: "a".to_owned(), token, invoked: ms(invoked), returned: ms(returned) }
    }

    fn check_grants(grants: Vec<Grant>) -> usize {
        check(&History { grants, ..History::default() }).len()
    }

    #[test]
    fn overlapping_grants_may_have_any_order() {
        assert_eq!(check_grants(vec![grant(2, 0, 10), grant(1, 5, 15), grant(3, 16, 20)]), 0);
    }

    #[test]
    fn duplicate_token_is_detected() {
        assert_eq!(check_grants(vec![grant(1, 0, 10), grant(1, 5, 15)]), 1);
    }

    #[test]
    fn falling_token_is_detected() {
        assert_eq!(check_grants(vec![grant(5, 0, 10), grant(4, 11, 15)]), 1);
        // Also if others are in between, and if the history is not in order.
        assert_eq!(check_grants(vec![grant(4, 30, 35), grant(6, 12, 40), grant(5, 0, 10)]), 1);
    }
}
