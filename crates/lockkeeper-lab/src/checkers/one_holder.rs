//! No two clients that honour their deadlines are certain to hold the same lock at the same time.

use std::collections::BTreeMap;

use super::Violation;
use super::history::{History, Hold};

/// Checks for overlapping holds of one lock.
pub fn check(history: &History) -> Vec<Violation> {
    let mut locks: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    // A client that gets its grant after a pause has no certain interval until its first renewal.
    for hold in history.holds.iter().filter(|hold| hold.from < hold.until) {
        locks.entry(&hold.lock).or_default().push(hold);
    }
    let mut violations = Vec::new();
    for (lock, mut holds) in locks {
        holds.sort_by_key(|hold| hold.from);
        let mut longest: Option<&Hold> = None;
        for hold in holds {
            if let Some(before) = longest
                && before.until > hold.from
                && before.token != hold.token
            {
                violations.push(format!(
                    "two holders of {lock}: client {} with token {} until {:?}, client {} with token {} from {:?}",
                    before.client, before.token, before.until, hold.client, hold.token, hold.from
                ));
            }
            if longest.is_none_or(|before| before.until < hold.until) {
                longest = Some(hold);
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn hold(client: u32, lock: &str, token: u64, from: u64, until: u64) -> Hold {
        let ms = Duration::from_millis;
        Hold { client, lock: lock.to_owned(), token, from: ms(from), until: ms(until) }
    }

    fn check_holds(holds: Vec<Hold>) -> usize {
        check(&History { holds, ..History::default() }).len()
    }

    #[test]
    fn consecutive_holds_pass() {
        assert_eq!(check_holds(vec![hold(1, "a", 1, 0, 10), hold(2, "a", 2, 10, 20)]), 0);
        assert_eq!(check_holds(vec![hold(1, "a", 1, 0, 10), hold(2, "b", 2, 5, 20)]), 0);
        assert_eq!(check_holds(vec![hold(1, "a", 1, 0, 10), hold(2, "a", 2, 5, 5)]), 0, "an empty interval");
    }

    #[test]
    fn overlapping_holds_are_detected() {
        assert_eq!(check_holds(vec![hold(2, "a", 2, 9, 20), hold(1, "a", 1, 0, 10)]), 1);
        // Also within a long hold.
        let within = vec![hold(1, "a", 1, 0, 100), hold(2, "a", 2, 101, 102), hold(3, "a", 3, 50, 60)];
        assert_eq!(check_holds(within), 1);
        let behind = vec![hold(1, "a", 1, 0, 100), hold(2, "a", 2, 10, 20), hold(3, "a", 3, 50, 60)];
        assert_eq!(check_holds(behind), 2);
    }
}
