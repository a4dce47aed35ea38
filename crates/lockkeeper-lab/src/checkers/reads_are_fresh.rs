//! A read shows at least what was acknowledged, and what had been read, before it was asked for.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Violation;
use super::history::{History, Read};

/// A version of a key that was known at some moment.
type Known = (Duration, u64);

/// Looks for reads of something older than what was already known.
pub fn check(history: &History) -> Vec<Violation> {
    let mut known: BTreeMap<&str, Vec<Known>> = BTreeMap::new();
    for write in &history.writes {
        if let Some(version) = write.version {
            known.entry(&write.key).or_default().push((write.answered, version));
        }
    }
    let mut reads: BTreeMap<&str, Vec<&Read>> = BTreeMap::new();
    for read in &history.reads {
        known.entry(&read.key).or_default().push((read.answered, read.version));
        reads.entry(&read.key).or_default().push(read);
    }
    let mut violations = Vec::new();
    for (key, mut reads) in reads {
        reads.sort_by_key(|read| read.asked);
        let mut known = known.remove(key).unwrap_or_default();
        known.sort();
        let mut known = known.into_iter().peekable();
        let mut highest = 0;
        for read in reads {
            while let Some((_, version)) = known.next_if(|(answered, _)| *answered < read.asked) {
                highest = highest.max(version);
            }
            if read.version < highest {
                violations.push(format!(
                    "{key} was read at version {} at {:?}, when version {highest} had been known",
                    read.version, read.asked
                ));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::history::Write;
    use super::*;

    fn read(version: u64, asked: u64, answered: u64) -> Read {
        let (asked, answered) = (Duration::from_millis(asked), Duration::from_millis(answered));
        Read { key: "k".to_owned(), value: String::new(), version, asked, answered }
    }

    fn history(reads: Vec<Read>) -> History {
        let write = Write {
            key: "k".to_owned(),
            value: "v".to_owned(),
            token: 1,
            version: Some(2),
            asked: Duration::from_millis(10),
            answered: Duration::from_millis(20),
        };
        History { writes: vec![write], reads, ..History::default() }
    }

    #[test]
    fn a_read_beside_a_write_may_show_either() {
        assert_eq!(check(&history(vec![read(1, 15, 25), read(2, 15, 25), read(2, 30, 40)])), [""; 0]);
    }

    #[test]
    fn a_read_of_what_was_overwritten_is_caught() {
        assert_eq!(check(&history(vec![read(1, 21, 25)])).len(), 1);
    }

    #[test]
    fn a_read_older_than_another_read_is_caught() {
        assert_eq!(check(&history(vec![read(2, 11, 12), read(1, 13, 14)])).len(), 1);
    }
}
