//! All operations have a total order that agrees with real time.
//!
//! No search is needed: tokens and versions give the order. It remains to check that no operation returned before an earlier
//! one of that order was invoked. `tokens_rise` checks that for grants, `no_lost_write` and `reads_are_fresh` for values; the
//! rest is here.

use std::collections::BTreeMap;

use super::Violation;
use super::history::{Grant, History, Read, Release, Write};

/// Checks releases against grants, and reads against writes.
pub fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    check_locks(history, &mut violations);
    check_values(history, &mut violations);
    violations
}

/// A release comes after its own grant and before the next one.
fn check_locks(history: &History, violations: &mut Vec<Violation>) {
    let mut locks: BTreeMap<&str, BTreeMap<u64, &Grant>> = BTreeMap::new();
    for grant in &history.grants {
        locks.entry(&grant.lock).or_default().insert(grant.token, grant);
    }
    for Release { lock, token, invoked, returned } in &history.releases {
        let Some(grants) = locks.get(lock.as_str()) else {
            violations.push(format!("{lock} was released with token {token}, but never granted"));
            continue;
        };
        match grants.get(token) {
            Some(grant) if grant.invoked <= *returned => {}
            _ => violations.push(format!("{lock} was released with token {token}, which was never granted")),
        }
        // The next grant returned before this release was invoked, and yet the release succeeded.
        if let Some((_, next)) = grants.range(token + 1..).next()
            && next.returned < *invoked
        {
            violations.push(format!(
                "{lock} was released with token {token}, invoked at {invoked:?}: token {} had been granted at {:?}",
                next.token, next.returned
            ));
        }
    }
}

/// No read returns a later write, and a write after a read gets a newer version.
fn check_values(history: &History, violations: &mut Vec<Violation>) {
    let mut writes: BTreeMap<&str, Vec<&Write>> = BTreeMap::new();
    for write in &history.writes {
        writes.entry(&write.key).or_default().push(write);
    }
    for read in history.reads.iter().filter(|read| read.version > 0) {
        let Read { key, value, version, invoked, returned } = read;
        let known = writes.get(key.as_str()).map(Vec::as_slice).unwrap_or_default();
        if let Some(write) = known.iter().find(|write| write.value == *value)
            && write.invoked > *returned
        {
            violations.push(format!("{key} was read as {value:?} at {invoked:?}, before that was written"));
        }
        for write in known.iter().filter(|write| write.invoked > *returned) {
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

    fn grant(token: u64, invoked: u64, returned: u64) -> Grant {
        Grant { client: 1, lock: "a".to_owned(), token, invoked: at(invoked), returned: at(returned) }
    }

    fn released(token: u64, invoked: u64, returned: u64) -> Release {
        Release { lock: "a".to_owned(), token, invoked: at(invoked), returned: at(returned) }
    }

    fn check_releases(grants: Vec<Grant>, releases: Vec<Release>) -> usize {
        check(&History { grants, releases, ..History::default() }).len()
    }

    #[test]
    fn release_concurrent_with_the_next_grant_passes() {
        assert_eq!(check_releases(vec![grant(1, 0, 1), grant(2, 5, 9)], vec![released(1, 6, 10)]), 0);
    }

    #[test]
    fn release_of_another_holders_lock_is_detected() {
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
            invoked: at(write_asked),
            returned: at(write_asked + 1),
        };
        let (invoked, returned) = (at(10), at(11));
        let read = |value: &str| Read {
            key: "k".to_owned(),
            value: value.to_owned(),
            version: 3,
            invoked,
            returned,
        };
        History { writes: vec![write], reads: vec![read("new"), read("old")], ..History::default() }
    }

    #[test]
    fn read_concurrent_with_its_write_passes() {
        assert_eq!(check(&values(5, 3)), [""; 0]);
        assert_eq!(check(&values(11, 3)), [""; 0]);
    }

    #[test]
    fn read_of_a_later_write_is_detected() {
        // Read before it was written, and a later write of a version that had been read.
        assert_eq!(check(&values(12, 3)).len(), 3);
    }
}
