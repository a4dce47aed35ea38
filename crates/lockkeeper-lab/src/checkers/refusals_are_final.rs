//! A late copy of a refused request is never granted: its caller has gone on (S5).

use super::Violation;
use super::history::History;

/// Looks at every request that was sent again after its refusal.
pub fn check(history: &History) -> Vec<Violation> {
    let granted = history.repeats.iter().filter_map(|repeat| Some((repeat, repeat.token?)));
    granted
        .map(|(repeat, token)| {
            format!(
                "client {} was refused {} ({}), and a late copy of the same request was granted token {token}",
                repeat.client, repeat.lock, repeat.refusal
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::history::Repeat;
    use super::*;

    #[test]
    fn a_late_copy_that_is_granted_is_caught() {
        for (token, violations) in [(None, 0), (Some(7), 1)] {
            let repeat = Repeat { client: 1, lock: "a".to_owned(), refusal: "busy".to_owned(), token };
            let history = History { repeats: vec![repeat], ..History::default() };
            assert_eq!(check(&history).len(), violations);
        }
    }
}
