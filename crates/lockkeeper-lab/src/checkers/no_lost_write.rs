//! Every acknowledged write is there at the end, or was overwritten by a later one; no two writes got the same
//! version, and versions rise with tokens.

use std::collections::BTreeMap;

use super::Violation;
use super::history::{History, Read, Write};

/// Looks at each key: at its writes, and at its last read, which must have been made when all was over.
pub fn check(history: &History) -> Vec<Violation> {
    let mut keys: BTreeMap<&str, Vec<&Write>> = BTreeMap::new();
    for write in &history.writes {
        keys.entry(&write.key).or_default().push(write);
    }
    let mut violations = Vec::new();
    for (key, writes) in keys {
        let last = history.reads.iter().filter(|read| read.key == key).max_by_key(|read| read.asked);
        check_versions(key, &writes, &mut violations);
        match last {
            Some(last) => check_end(key, &writes, last, &mut violations),
            None => violations.push(format!("{key} was never read: nothing can be said about its writes")),
        }
    }
    violations
}

fn check_versions(key: &str, writes: &[&Write], violations: &mut Vec<Violation>) {
    let mut acknowledged: Vec<(u64, &Write)> =
        writes.iter().filter_map(|write| Some((write.version?, *write))).collect();
    acknowledged.sort_by_key(|(version, _)| *version);
    for pair in acknowledged.windows(2) {
        let ((first, before), (second, after)) = (pair[0], pair[1]);
        if first == second {
            violations.push(format!(
                "two writes of {key} got version {first}: \"{}\" and \"{}\"",
                before.value, after.value
            ));
        } else if before.asked > after.answered {
            violations.push(format!(
                "version {second} of {key} was answered at {:?}, before version {first} was asked for",
                after.answered
            ));
        }
        if before.token > after.token {
            violations.push(format!(
                "{key}: version {second} was written under token {}, after token {} had written version {first}",
                after.token, before.token
            ));
        }
    }
}

fn check_end(key: &str, writes: &[&Write], last: &Read, violations: &mut Vec<Violation>) {
    let newest = writes.iter().filter_map(|write| write.version).max().unwrap_or(0);
    if last.version < newest {
        violations.push(format!(
            "{key} has version {} at the end: version {newest} was acknowledged and is lost",
            last.version
        ));
    }
    if last.version == 0 {
        return;
    }
    match writes.iter().find(|write| write.value == last.value) {
        None => violations.push(format!("{key} has a value that nobody wrote: \"{}\"", last.value)),
        Some(write) if write.version.is_some_and(|version| version != last.version) => {
            violations.push(format!(
                "{key} has \"{}\" at version {}, which was acknowledged as version {:?}",
                last.value, last.version, write.version
            ));
        }
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn write(value: &str, token: u64, version: Option<u64>, asked: u64) -> Write {
        let (asked, answered) = (Duration::from_millis(asked), Duration::from_millis(asked + 5));
        Write { key: "k".to_owned(), value: value.to_owned(), token, version, asked, answered }
    }

    fn check_writes(writes: Vec<Write>, value: &str, version: u64) -> Vec<Violation> {
        let (asked, answered) = (Duration::from_secs(100), Duration::from_secs(101));
        let read = Read { key: "k".to_owned(), value: value.to_owned(), version, asked, answered };
        check(&History { writes, reads: vec![read], ..History::default() })
    }

    #[test]
    fn what_was_acknowledged_is_there_or_overwritten() {
        let writes = vec![write("a", 1, Some(1), 0), write("b", 2, None, 10), write("c", 2, Some(3), 20)];
        assert_eq!(check_writes(writes.clone(), "c", 3), [""; 0]);
        // The one that was in doubt may have been the last.
        assert_eq!(check_writes(writes[..2].to_vec(), "b", 2), [""; 0]);
        assert_eq!(check_writes(writes[..2].to_vec(), "a", 1), [""; 0]);
    }

    #[test]
    fn a_lost_write_is_caught() {
        let writes = vec![write("a", 1, Some(1), 0), write("b", 2, Some(2), 10)];
        assert_eq!(check_writes(writes.clone(), "a", 1).len(), 1);
        assert_eq!(check_writes(writes.clone(), "", 0).len(), 1);
        assert_eq!(check_writes(writes, "never written", 3).len(), 1);
    }

    #[test]
    fn a_version_given_twice_is_caught() {
        let writes = vec![write("a", 1, Some(1), 0), write("b", 1, Some(1), 10)];
        assert!(!check_writes(writes, "b", 1).is_empty());
        let writes = vec![write("a", 1, Some(2), 0), write("b", 1, Some(1), 10)];
        assert_eq!(check_writes(writes, "a", 2).len(), 1, "a later write has an earlier version");
    }

    #[test]
    fn a_write_under_a_stale_token_is_caught() {
        let writes = vec![write("a", 7, Some(1), 0), write("b", 6, Some(2), 10)];
        assert_eq!(check_writes(writes, "b", 2).len(), 1);
    }

    #[test]
    fn a_key_that_was_never_read_is_told() {
        let history = History { writes: vec![write("a", 1, Some(1), 0)], ..History::default() };
        assert_eq!(check(&history).len(), 1);
    }
}
