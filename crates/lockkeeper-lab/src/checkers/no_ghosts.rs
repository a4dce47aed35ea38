//! After all clients are gone, no lock has a holder or waiter.

use super::Violation;
use super::history::History;

/// Checks what is left.
pub fn check(history: &History) -> Vec<Violation> {
    let left = history.left.iter();
    left.map(|left| {
        let does = if left.waits { "waits for" } else { "holds" };
        format!("{} still {does} {} although all clients are gone", left.owner, left.lock)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::history::Leftover;
    use super::*;

    #[test]
    fn remaining_holder_or_waiter_is_detected() {
        assert_eq!(check(&History::default()), [""; 0]);
        for waits in [false, true] {
            let left = vec![Leftover { lock: "a".to_owned(), owner: "gone".to_owned(), waits }];
            assert_eq!(check(&History { left, ..History::default() }).len(), 1);
        }
    }
}
