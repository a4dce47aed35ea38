//! Every acknowledged write is present at the end or was overwritten by a later one; versions are unique and rise with
//! tokens.

use std::collections::BTreeMap;

use super::Violation;
use super::history::{History, Read, Write};

/// Checks the writes of each key and its last read, which must come after all writes.
pub fn check(history: &History) -> Vec<Violation> {
    let mut keys: BTreeMap<&str, Vec<&Write>> = BTreeMap::new();
    for write in &history.writes {
        keys.entry(&write.key).or_default().push(write);
    }
    let mut violations = Vec::new();
    for (key, writes) in keys {
        let last = history.reads.iter().filter(|read| read.key == key).max_by_key(|read| read.invoked);
        check_versions(key, &writes, &mut violations);
        match last {
            Some(last) => check_end(key, &writes, last, &mut violations),
            None => violations.push(format!("{key} was never read: its writes cannot be checked")),
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
        } else if before.invoked > after.returned {
            violations.push(format!(
                "version {second} of {key} returned at {:?}, before version {first} was invoked",
                after.returned
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
        None => violations.push(format!("{key} has a value that was never written: \"{}\"", last.value)),
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

    fn write(value: &str, token: u64, version: Option<u64>, invoked: u64) -> Write {
        let (invoked, returned) = (Duration::from_millis(invoked), Duration::from_millis(invoked + 5));
        Write { key: "k".to_owned(), value: value.to_owned(), token, version, invoked, returned }
    }

    fn check_writes(writes: Vec<Write>, value: &str, version: u64) -> Vec<Violation> {
        let (invoked, returned) = (Duration::from_secs(100), Duration::from_secs(101));
        let read = Read { key: "k".to_owned(), value: value.to_owned(), version, invoked, returned };
        check(&History { writes, reads: vec![read], ..History::default() })
    }

    #[test]
    fn present_or_overwritten_writes_pass() {
        let writes = vec![write("a", 1, Some(1), 0), write("b", 2, None, 10), write("c", 2, Some(3), 20)];
        assert_eq!(check_writes(writes.clone(), "c", 3), [""; 0]);
        // The write with an unknown outcome may be the last.
        assert_eq!(check_writes(writes[..2].to_vec(), "b", 2), [""; 0]);
        assert_eq!(check_writes(writes[..2].to_vec(), "a", 1), [""; 0]);
    }

    #[test]
    fn lost_write_is_detected() {
        let writes = vec![write("a", 1, Some(1), 0), write("b", 2, Some(2), 10)];
        assert_eq!(check_writes(writes.clone(), "a", 1).len(), 1);
        assert_eq!(check_writes(writes.clone(), "", 0).len(), 1);
        assert_eq!(check_writes(writes, "never written", 3).len(), 1);
    }

    #[test]
    fn duplicate_version_is_detected() {
        let writes = vec![write("a", 1, Some(1), 0), write("b", 1, Some(1), 10)];
        assert!(!check_writes(writes, "b", 1).is_empty());
        let writes = vec![write("a", 1, Some(2), 0), write("b", 1, Some(1), 10)];
        assert_eq!(check_writes(writes, "a", 2).len(), 1, "a later write has an earlier version");
    }

    #[test]
    fn write_under_a_stale_token_is_detected() {
        let writes = vec![write("a", 7, Some(1), 0), write("b", 6, Some(2), 10)];
        assert_eq!(check_writes(writes, "b", 2).len(), 1);
    }

    #[test]
    fn key_that_was_never_read_is_reported() {
        let history = History { writes: vec![write("a", 1, Some(1), 0)], ..History::default() };
        assert_eq!(check(&history).len(), 1);
    }
}
