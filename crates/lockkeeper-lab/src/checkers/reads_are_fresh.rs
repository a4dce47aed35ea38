//! A read returns at least the newest version that was acknowledged or read before it was invoked.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Violation;
use super::history::{History, Read};

/// A version of a key and the time from which it was known.
type Known = (Duration, u64);

/// Checks for stale reads.
pub fn check(history: &History) -> Vec<Violation> {
    let mut known: BTreeMap<&str, Vec<Known>> = BTreeMap::new();
    for write in &history.writes {
        if let Some(version) = write.version {
            known.entry(&write.key).or_default().push((write.returned, version));
        }
    }
    let mut reads: BTreeMap<&str, Vec<&Read>> = BTreeMap::new();
    for read in &history.reads {
        known.entry(&read.key).or_default().push((read.returned, read.version));
        reads.entry(&read.key).or_default().push(read);
    }
    let mut violations = Vec::new();
    for (key, mut reads) in reads {
        reads.sort_by_key(|read| read.invoked);
        let mut known = known.remove(key).unwrap_or_default();
        known.sort();
        let mut known = known.into_iter().peekable();
        let mut highest = 0;
        for read in reads {
            while let Some((_, version)) = known.next_if(|(returned, _)| *returned < read.invoked) {
                highest = highest.max(version);
            }
            if read.version < highest {
                violations.push(format!(
                    "{key} was read at version {} at {:?}, but version {highest} was already known",
                    read.version, read.invoked
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

    fn read(version: u64, invoked: u64, returned: u64) -> Read {
        let (invoked, returned) = (Duration::from_millis(invoked), Duration::from_millis(returned));
        Read { key: "k".to_owned(), value: String::new(), version, invoked, returned }
    }

    fn history(reads: Vec<Read>) -> History {
        let write = Write {
            key: "k".to_owned(),
            value: "v".to_owned(),
            token: 1,
            version: Some(2),
            invoked: Duration::from_millis(10),
            returned: Duration::from_millis(20),
        };
        History { writes: vec![write], reads, ..History::default() }
    }

    #[test]
    fn read_concurrent_with_a_write_may_return_either() {
        assert_eq!(check(&history(vec![read(1, 15, 25), read(2, 15, 25), read(2, 30, 40)])), [""; 0]);
    }

    #[test]
    fn read_of_an_overwritten_version_is_detected() {
        assert_eq!(check(&history(vec![read(1, 21, 25)])).len(), 1);
    }

    #[test]
    fn read_older_than_an_earlier_read_is_detected() {
        assert_eq!(check(&history(vec![read(2, 11, 12), read(1, 13, 14)])).len(), 1);
    }
}
