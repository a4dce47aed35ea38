//! Every answer fits into one order of all operations that agrees with real time.
//!
//! No search is needed. Tokens and versions are handed out in the order in which things happened, so the order is
//! known; what is left is to ask whether any operation was over before another one began that comes earlier in it. For
//! grants that is `tokens_rise`, for values `no_lost_write` and `reads_are_fresh`; what they leave open is here.

use std::collections::BTreeMap;

use super::Violation;
use super::history::{Grant, History, Read, Release, Write};

/// Looks at releases between grants, and at reads between writes.
pub fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    check_locks(history, &mut violations);
    check_values(history, &mut violations);
    violations
}

/// A lock that was given back comes after its own grant and before the next one.
fn check_locks(history: &History, violations: &mut Vec<Violation>) {
    let mut locks: BTreeMap<&str, BTreeMap<u64, &Grant>> = BTreeMap::new();
    for grant in &history.grants {
        locks.entry(&grant.lock).or_default().insert(grant.token, grant);
    }
    for Release { lock, token, asked, answered } in &history.releases {
        let Some(grants) = locks.get(lock.as_str()) else {
            violations.push(format!("{lock} was released with token {token}, but never granted"));
            continue;
        };
        match grants.get(token) {
            Some(grant) if grant.asked <= *answered => {}
            _ => violations.push(format!("{lock} was released with token {token}, which it did not have")),
        }
        // The next holder was let in before this release was even asked for, and yet it was carried out.
        if let Some((_, next)) = grants.range(token + 1..).next()
            && next.answered < *asked
        {
            violations.push(format!(
                "{lock} was released with token {token}, asked for at {asked:?}: token {} had been granted at {:?}",
                next.token, next.answered
            ));
        }
    }
}

/// Nobody reads what is yet to be written, and who writes after a read makes a newer version.
fn check_values(history: &History, violations: &mut Vec<Violation>) {
    let mut writes: BTreeMap<&str, Vec<&Write>> = BTreeMap::new();
    for write in &history.writes {
        writes.entry(&write.key).or_default().push(write);
    }
    for read in history.reads.iter().filter(|read| read.version > 0) {
        let Read { key, value, version, asked, answered } = read;
        let known = writes.get(key.as_str()).map(Vec::as_slice).unwrap_or_default();
        if let Some(write) = known.iter().find(|write| write.value == *value)
            && write.asked > *answered
        {
            violations.push(format!("{key} was read as {value:?} at {asked:?}, before that was written"));
        }
        for write in known.iter().filter(|write| write.asked > *answered) {
            if write.version.is_some_and(|written| written <= *version) {
                violations.push(format!(
                    "{key} was read at version {version}, and then {:?} was written as version {:?}",
                    write.value, write.version
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn grant(token: u64, asked: u64, answered: u64) -> Grant {
        Grant { client: 1, lock: "a".to_owned(), token, asked: at(asked), answered: at(answered) }
    }

    fn released(token: u64, asked: u64, answered: u64) -> Release {
        Release { lock: "a".to_owned(), token, asked: at(asked), answered: at(answered) }
    }

    fn check_releases(grants: Vec<Grant>, releases: Vec<Release>) -> usize {
        check(&History { grants, releases, ..History::default() }).len()
    }

    #[test]
    fn a_release_beside_the_next_grant_is_fine() {
        assert_eq!(check_releases(vec![grant(1, 0, 1), grant(2, 5, 9)], vec![released(1, 6, 10)]), 0);
    }

    #[test]
    fn a_release_of_what_another_holds_is_caught() {
        assert_eq!(check_releases(vec![grant(1, 0, 1), grant(2, 5, 9)], vec![released(1, 10, 11)]), 1);
        assert_eq!(check_releases(vec![grant(1, 0, 1)], vec![released(3, 10, 11)]), 1);
        assert_eq!(check_releases(Vec::new(), vec![released(3, 10, 11)]), 1);
    }

    fn values(write_asked: u64, version: u64) -> History {
        let write = Write {
            key: "k".to_owned(),
            value: "new".to_owned(),
            token: 1,
            version: Some(version),
            asked: at(write_asked),
            answered: at(write_asked + 1),
        };
        let (asked, answered) = (at(10), at(11));
        let read =
            |value: &str| Read { key: "k".to_owned(), value: value.to_owned(), version: 3, asked, answered };
        History { writes: vec![write], reads: vec![read("new"), read("old")], ..History::default() }
    }

    #[test]
    fn a_read_beside_its_write_is_fine() {
        assert_eq!(check(&values(5, 3)), [""; 0]);
        assert_eq!(check(&values(11, 3)), [""; 0]);
    }

    #[test]
    fn a_read_of_the_future_is_caught() {
        // Read before it was written, and a later write of a version that had been read.
        assert_eq!(check(&values(12, 3)).len(), 3);
    }
}
