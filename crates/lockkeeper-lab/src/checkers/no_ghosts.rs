//! When every client has given back everything and gone, nobody holds a lock and nobody waits for one.

use super::Violation;
use super::history::History;

/// Looks at what was left.
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
    use super::super::history::Left;
    use super::*;

    #[test]
    fn a_ghost_is_caught() {
        assert_eq!(check(&History::default()), [""; 0]);
        for waits in [false, true] {
            let left = vec![Left { lock: "a".to_owned(), owner: "gone".to_owned(), waits }];
            assert_eq!(check(&History { left, ..History::default() }).len(), 1);
        }
    }
}
