//! Whoever stands before another in a queue is let in before the other, if both are (S7).

use std::collections::BTreeMap;

use super::Violation;
use super::history::History;

/// Looks at every queue that was seen.
pub fn check(history: &History) -> Vec<Violation> {
    let tokens: BTreeMap<&str, u64> =
        history.answered.iter().map(|answered| (answered.request.as_str(), answered.token)).collect();
    let mut violations = Vec::new();
    for queue in &history.queues {
        let granted: Vec<(&str, u64)> = queue
            .requests
            .iter()
            .filter_map(|request| Some((request.as_str(), *tokens.get(request.as_str())?)))
            .collect();
        for pair in granted.windows(2) {
            let ((first, before), (second, after)) = (pair[0], pair[1]);
            if before > after {
                violations.push(format!(
                    "{}: {first} stood before {second} at {:?}, but got token {before} and the other one {after}",
                    queue.lock, queue.seen
                ));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::history::{Answered, Queue};
    use super::*;

    fn history(tokens: &[(&str, u64)], requests: &[&str]) -> History {
        let answered =
            tokens.iter().map(|(request, token)| Answered { request: (*request).to_owned(), token: *token });
        let requests = requests.iter().map(|request| (*request).to_owned()).collect();
        let queue = Queue { lock: "a".to_owned(), seen: Duration::ZERO, requests };
        History { answered: answered.collect(), queues: vec![queue], ..History::default() }
    }

    #[test]
    fn in_turn_is_fine_and_whoever_leaves_does_not_count() {
        assert_eq!(check(&history(&[("x", 1), ("z", 3)], &["x", "y", "z"])), [""; 0]);
    }

    #[test]
    fn one_who_overtakes_is_caught() {
        assert_eq!(check(&history(&[("x", 2), ("z", 1)], &["x", "y", "z"])).len(), 1);
    }
}
