//! A late copy of a refused request is never granted (S5).

use super::Violation;
use super::history::History;

/// Checks every late copy of a refused request.
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
    fn granted_late_copy_is_detected() {
        for (token, violations) in [(None, 0), (Some(7), 1)] {
            let repeat = Repeat { client: 1, lock: "a".to_owned(), refusal: "busy".to_owned(), token };
            let history = History { repeats: vec![repeat], ..History::default() };
            assert_eq!(check(&history).len(), violations);
        }
    }
}
