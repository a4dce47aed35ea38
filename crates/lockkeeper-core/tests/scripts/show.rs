//! Formats answers, effects and views as lines of a script.

use lockkeeper_core::value::StoredValue;
use lockkeeper_core::{Answer, CellTime, Effect, Freed, Grant, LockView, Mode, Refusal, Reply, SessionEnd};

pub(crate) fn answer(answer: &Answer) -> String {
    match answer {
        Ok(Reply::Done) => "done".into(),
        Ok(Reply::SessionOpened { ttl_ms, version }) => {
            format!("opened ttl={} version={version}", milliseconds(*ttl_ms))
        }
        Ok(Reply::Granted(granted)) => grant(granted),
        Ok(Reply::Queued { ticket }) => format!("queued ticket={ticket}"),
        Ok(Reply::Forced { released, last_token }) => {
            format!("forced released={released} last_token={last_token}")
        }
        Ok(Reply::Put { version }) => format!("put version={version}"),
        Ok(Reply::Rate { allowed: true, .. }) => "allowed".into(),
        Ok(Reply::Rate { retry_after_ms, .. }) => {
            format!("denied, again in {}", milliseconds(*retry_after_ms))
        }
        Err(refused) => refusal(refused),
    }
}

pub(crate) fn effect(effect: &Effect) -> String {
    match effect {
        Effect::Granted { session, ticket, request, grant: granted, waited_ms } => format!(
            "-> {session:?} {} ticket={ticket}{} after {}",
            grant(granted),
            of_request(request),
            milliseconds(*waited_ms)
        ),
        Effect::Ended { session, ticket, request, refusal: refused, .. } => {
            format!("-> {session:?} ended ticket={ticket}{}: {}", of_request(request), refusal(refused))
        }
        Effect::Freed { session, lock, token, why, held_ms } => {
            let why = freed(*why);
            format!("-> {session:?} freed {lock} token={token} {why} after {}", milliseconds(*held_ms))
        }
        Effect::SessionEnded { session, why: SessionEnd::Closed } => format!("-> {session:?} closed"),
        Effect::SessionEnded { session, why: SessionEnd::Expired } => format!("-> {session:?} expired"),
        Effect::ExpiryStale { session } => format!("-> {session:?} lives on: the expiry was stale"),
    }
}

/// The kind of an answer or effect without its details, for counting.
pub(crate) fn kind(line: &str) -> &str {
    let words =
        line.strip_prefix("-> ").map_or(line, |rest| rest.split_once(' ').map_or(rest, |(_, what)| what));
    words.split([' ', ':']).next().unwrap_or(words)
}

pub(crate) fn view(view: &LockView) -> Vec<String> {
    let LockView { name, capacity, last_token, holders, queue, waiting, closed_ms } = view;
    let mut first = format!("{name} capacity={capacity} last_token={last_token}");
    if *closed_ms > 0 {
        first += &format!(" closed for {}", milliseconds(*closed_ms));
    }
    if holders.is_empty() && *waiting == 0 {
        first += ", nobody holds it or waits";
    }
    let mut lines = vec![first];
    lines.extend(holders.iter().map(|holder| {
        let permits =
            if holder.permits == 1 { String::new() } else { format!(" permits={}", holder.permits) };
        format!(
            "held by {:?}{}{} token={}{}{permits} for {}",
            holder.session,
            owner(&holder.owner),
            work(&holder.scope, &holder.value),
            holder.token,
            mode(holder.mode),
            milliseconds(holder.held_ms)
        )
    }));
    lines.extend(queue.iter().map(|waiter| {
        format!(
            "{}. {:?}{}{}{} waits for {}",
            waiter.position,
            waiter.session,
            owner(&waiter.owner),
            work(&waiter.scope, &waiter.value),
            mode(waiter.mode),
            milliseconds(waiter.waited_ms)
        )
    }));
    lines
}

pub(crate) fn value(value: Option<&StoredValue>) -> String {
    match value {
        None => "no such value".into(),
        Some(StoredValue { bytes, version, token }) => {
            format!("\"{}\" version={version} token={token}", String::from_utf8_lossy(bytes))
        }
    }
}

pub(crate) fn moment(moment: CellTime) -> String {
    milliseconds(moment.ms_since(CellTime(0)))
}

fn refusal(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Busy { lock } => format!("busy {lock}"),
        Refusal::Timeout { lock } => format!("timeout {lock}"),
        Refusal::Cancelled => "cancelled".into(),
        Refusal::NotHeld { lock, token } => format!("not_held {lock} token={token}"),
        Refusal::SessionLost => "session_lost".into(),
        Refusal::StaleToken { last_token } => format!("stale_token last_token={last_token}"),
        Refusal::VersionMismatch { version } => format!("version_mismatch version={version}"),
        Refusal::Deadlock { cycle } => {
            let steps = cycle.iter().map(|step| format!("{}({}) -> {}", step.scope, step.owner, step.lock));
            format!("deadlock: {}", steps.collect::<Vec<_>>().join(", "))
        }
        Refusal::Died { lock, older } => format!("died {lock} older={older}"),
        Refusal::Wounded => "wounded".into(),
        Refusal::Invalid(text) => format!("invalid: {text}"),
        Refusal::TooLarge(text) => format!("too_large: {text}"),
        Refusal::Limit(text) => format!("limit: {text}"),
    }
}

fn grant(grant: &Grant) -> String {
    let names: Vec<String> = grant.locks.as_slice().iter().map(|lock| name(lock)).collect();
    format!("granted {} token={}{}", names.join(" "), grant.token, mode(grant.mode))
}

fn freed(why: Freed) -> &'static str {
    match why {
        Freed::Released => "(released)",
        Freed::SessionClosed => "(session closed)",
        Freed::SessionExpired => "(session expired)",
        Freed::Forced => "(forced)",
        Freed::Cancelled => "(cancelled)",
        Freed::Wounded => "(wounded)",
    }
}

/// A name, truncated if it is long.
fn name(name: &str) -> String {
    match name.char_indices().nth(60) {
        Some((end, _)) => format!("{}... ({} bytes)", &name[..end], name.len()),
        None => name.to_owned(),
    }
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "",
        Mode::Shared => " shared",
    }
}

fn owner(owner: &str) -> String {
    if owner.is_empty() { String::new() } else { format!(" ({owner})") }
}

fn work(scope: &str, value: &str) -> String {
    let named =
        |what: &str, text: &str| if text.is_empty() { String::new() } else { format!(" {what}={text}") };
    named("scope", scope) + &named("value", value)
}

fn of_request(request: &Option<lockkeeper_core::RequestId>) -> String {
    request.as_ref().map_or_else(String::new, |request| format!(" request={request}"))
}

fn milliseconds(ms: u64) -> String {
    if ms.is_multiple_of(1_000) { format!("{}s", ms / 1_000) } else { format!("{ms}ms") }
}
