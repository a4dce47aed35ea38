//! Who holds what. Redis knows no queue: those who wait are not seen.

use std::collections::HashMap;
use std::time::Duration;

use super::lock::key;
use super::session::Instance;
use super::token;
use crate::error::Error;
use crate::mode::Mode;
use crate::view::{Holder, LockPage, LockState};

/// How many keys Redis looks at in one step.
const SCAN_STEP: usize = 1_000;

pub(super) async fn who(instance: &Instance, lock: &str) -> Result<LockState, Error> {
    let key = key(lock);
    let now = now_ms(instance).await?;
    let kind: String = instance.ask(redis::cmd("TYPE").arg(&key)).await?;
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
            let value: Option<String> = instance.ask(redis::cmd("GET").arg(&key)).await?;
            state.holders.extend(value.as_deref().and_then(|value| alone(value, now)));
        }
        "hash" => {
            let mut all: HashMap<String, String> = instance.ask(redis::cmd("HGETALL").arg(&key)).await?;
            let kind = all.remove("kind").unwrap_or_default();
            state.capacity = kind.parse().unwrap_or(u32::MAX);
            let mode = if kind == "s" { Mode::Shared } else { Mode::Exclusive };
            state.holders.extend(all.iter().filter_map(|(id, entry)| one_of(id, entry, mode, now)));
            state.holders.sort_by_key(|holder| holder.token);
        }
        _ => {}
    }
    Ok(state)
}

/// `id token since owner`
fn alone(value: &str, now: u64) -> Option<Holder> {
    let mut parts = value.splitn(4, ' ');
    let session = parts.next()?.to_owned();
    // A value that others wrote by hand has no more than an id: it is a holder all the same.
    let token = parts.next().and_then(|token| token.parse().ok()).unwrap_or(0);
    let since: u64 = parts.next().and_then(|since| since.parse().ok()).unwrap_or(now);
    let held = Duration::from_millis(now.saturating_sub(since));
    let owner = parts.next().unwrap_or_default().to_owned();
    Some(Holder { session, token, mode: Mode::Exclusive, owner, held, permits: 1, ..Holder::default() })
}

/// `token since ends permits owner`
fn one_of(id: &str, entry: &str, mode: Mode, now: u64) -> Option<Holder> {
    let mut parts = entry.splitn(5, ' ');
    let token = parts.next()?.parse().ok()?;
    let since: u64 = parts.next()?.parse().ok()?;
    let ends: u64 = parts.next()?.parse().ok()?;
    let permits = parts.next()?.parse().ok()?;
    let owner = parts.next().unwrap_or_default().to_owned();
    let held = Duration::from_millis(now.saturating_sub(since));
    (ends > now).then(|| Holder {
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
    let (seconds, micros): (u64, u64) = instance.ask(&redis::cmd("TIME")).await?;
    Ok(seconds * 1_000 + micros / 1_000)
}

/// Redis has its keys in no order: all of them are read, and then a page of them is shown.
pub(super) async fn locks(
    instance: &Instance,
    prefix: &str,
    limit: usize,
    after: &str,
) -> Result<LockPage, Error> {
    let pattern = format!("{}*", escaped(&key(prefix)));
    let (mut cursor, mut names) = (0u64, Vec::new());
    let start = key("");
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_STEP);
        let (next, keys): (u64, Vec<String>) = instance.ask(&scan).await?;
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

/// A name may have characters in it that mean something in a pattern.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_others_wrote_by_hand_is_a_holder_too() {
        let holder = alone("just-a-value", 7).unwrap();
        assert_eq!((holder.session.as_str(), holder.token, holder.held), ("just-a-value", 0, Duration::ZERO));
        let holder = alone("id 42 1000 host/1/me and more", 3_000).unwrap();
        assert_eq!(
            (holder.token, holder.owner.as_str(), holder.held.as_secs()),
            (42, "host/1/me and more", 2)
        );
    }

    #[test]
    fn an_entry_whose_time_is_over_is_no_holder() {
        assert!(one_of("id", "42 1000 2000 1 me", Mode::Shared, 1_999).is_some());
        assert!(one_of("id", "42 1000 2000 1 me", Mode::Shared, 2_000).is_none());
    }

    #[test]
    fn names_are_no_patterns() {
        assert_eq!(escaped("a*[b]?"), "a\\*\\[b\\]\\?");
    }
}
