//! The view of a lock: its holders. Waiters are not visible, because there is no queue in Redis.

use std::collections::HashMap;
use std::time::Duration;

use super::lock::key;
use super::session::Instance;
use super::token;
use crate::error::Error;
use crate::mode::Mode;
use crate::view::{Holder, LockPage, LockState};

/// The COUNT hint of SCAN.
const SCAN_STEP: usize = 1_000;

pub(super) async fn who(instance: &Instance, lock: &str) -> Result<LockState, Error> {
    let key = key(lock);
    let now = now_ms(instance).await?;
    let kind: String = instance.query(redis::cmd("TYPE").arg(&key)).await?;
    let mut state = LockState {
        lock: lock.to_owned(),
        capacity: 1,
        last_token: token::last(instance).await?,
        holders: Vec::new(),
        queue: Vec::new(),
        waiting: 0,
        closed: Duration::ZERO,
    };
    match kind.as_str() {
        "string" => {
            let value: Option<String> = instance.query(redis::cmd("GET").arg(&key)).await?;
            state.holders.extend(value.as_deref().and_then(|value| exclusive_holder(value, now)));
        }
        "hash" => {
            let mut all: HashMap<String, String> = instance.query(redis::cmd("HGETALL").arg(&key)).await?;
            let kind = all.remove("kind").unwrap_or_default();
            state.capacity = kind.parse().unwrap_or(u32::MAX);
            let mode = if kind == "s" { Mode::Shared } else { Mode::Exclusive };
            state.holders.extend(all.iter().filter_map(|(id, entry)| hash_holder(id, entry, mode, now)));
            state.holders.sort_by_key(|holder| holder.token);
        }
        _ => {}
    }
    Ok(state)
}

/// The holder in the value of an exclusive lock: `id token since owner`.
fn exclusive_holder(value: &str, now: u64) -> Option<Holder> {
    let mut parts = value.splitn(4, ' ');
    let session = parts.next()?.to_owned();
    // A value that another program wrote may contain only an ID: it is a holder nevertheless.
    let token = parts.next().and_then(|token| token.parse().ok()).unwrap_or(0);
    let since: u64 = parts.next().and_then(|since| since.parse().ok()).unwrap_or(now);
    let held = Duration::from_millis(now.saturating_sub(since));
    let owner = parts.next().unwrap_or_default().to_owned();
    Some(Holder { session, token, mode: Mode::Exclusive, owner, held, permits: 1, ..Holder::default() })
}

/// The holder in a field of a shared or counted lock: `token since expires permits owner`; `None` if it has expired.
fn hash_holder(id: &str, entry: &str, mode: Mode, now: u64) -> Option<Holder> {
    let mut parts = entry.splitn(5, ' ');
    let token = parts.next()?.parse().ok()?;
    let since: u64 = parts.next()?.parse().ok()?;
    let expires: u64 = parts.next()?.parse().ok()?;
    let permits = parts.next()?.parse().ok()?;
    let owner = parts.next().unwrap_or_default().to_owned();
    let held = Duration::from_millis(now.saturating_sub(since));
    (expires > now).then(|| Holder {
        session: id.to_owned(),
        token,
        mode,
        owner,
        held,
        permits,
        ..Holder::default()
    })
}

pub(super) async fn now_ms(instance: &Instance) -> Result<u64, Error> {
    let (seconds, micros): (u64, u64) = instance.query(&redis::cmd("TIME")).await?;
    Ok(seconds * 1_000 + micros / 1_000)
}

/// Lists a page of locks. SCAN has no order, so all names are read and sorted first.
pub(super) async fn locks(
    instance: &Instance,
    prefix: &str,
    limit: usize,
    after: &str,
) -> Result<LockPage, Error> {
    let pattern = format!("{}*", escape_pattern(&key(prefix)));
    let (mut cursor, mut names) = (0u64, Vec::new());
    let start = key("");
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_STEP);
        let (next, keys): (u64, Vec<String>) = instance.query(&scan).await?;
        names.extend(keys.iter().filter_map(|key| key.strip_prefix(&start)).map(str::to_owned));
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    names.sort();
    names.dedup();
    names.retain(|name| name.as_str() > after);
    let more = names.len() > limit;
    let mut locks = Vec::new();
    for name in names.iter().take(limit) {
        locks.push(who(instance, name).await?);
    }
    Ok(LockPage { locks, more })
}

/// Escapes the special characters of a SCAN pattern.
fn escape_pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_written_by_another_program_is_a_holder() {
        let holder = exclusive_holder("just-a-value", 7).unwrap();
        assert_eq!((holder.session.as_str(), holder.token, holder.held), ("just-a-value", 0, Duration::ZERO));
        let holder = exclusive_holder("id 42 1000 host/1/me and more", 3_000).unwrap();
        assert_eq!(
            (holder.token, holder.owner.as_str(), holder.held.as_secs()),
            (42, "host/1/me and more", 2)
        );
    }

    #[test]
    fn expired_entry_is_not_a_holder() {
        assert!(hash_holder("id", "42 1000 2000 1 me", Mode::Shared, 1_999).is_some());
        assert!(hash_holder("id", "42 1000 2000 1 me", Mode::Shared, 2_000).is_none());
    }

    #[test]
    fn special_characters_of_a_pattern_are_escaped() {
        assert_eq!(escape_pattern("a*[b]?"), "a\\*\\[b\\]\\?");
    }
}
