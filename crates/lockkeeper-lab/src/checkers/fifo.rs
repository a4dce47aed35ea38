//! Requests of a queue are granted in order (S7).

use std::collections::BTreeMap;

use super::Violation;
use super::history::History;

/// Checks every observed queue.
pub fn check(history: &History) -> Vec<Violation> {
    let tokens: BTreeMap<&str, u64> =
        history.granted_requests.iter().map(|granted| (granted.request.as_str(), granted.token)).collect();
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
                    "{}: {first} was ahead of {second} at {:?}, but got token {before} after token {after}",
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

    use super::super::history::{GrantedRequest, Queue};
    use super::*;

    fn history(tokens: &[(&str, u64)], requests: &[&str]) -> History {
        let granted = tokens
            .iter()
            .map(|(request, token)| GrantedRequest { request: (*request).to_owned(), token: *token });
        let requests = requests.iter().map(|request| (*request).to_owned()).collect();
        let queue = Queue { lock: "a".to_owned(), seen: Duration::ZERO, requests };
        History { granted_requests: granted.collect(), queues: vec![queue], ..History::default() }
    }

    #[test]
    fn grants_in_order_pass_and_withdrawn_requests_are_ignored() {
        assert_eq!(check(&history(&[("x", 1), ("z", 3)], &["x", "y", "z"])), [""; 0]);
    }

    #[test]
    fn overtaking_is_detected() {
        assert_eq!(check(&history(&[("x", 2), ("z", 1)], &["x", "y", "z"])).len(), 1);
    }
}
