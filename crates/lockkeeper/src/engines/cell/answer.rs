//! From the wire to the library's own types.

use std::time::Duration;

use lockkeeper_api::v1;
use lockkeeper_core::Token;
use smol_str::SmolStr;

use crate::capabilities::Finding;
use crate::election::Leader;
use crate::error::Error;
use crate::mode::Mode;
use crate::value::Value;
use crate::view::{Holder, LockPage, LockState, Member, Status, TokenCheck, Waiter};

/// What an error from a node means for the work that met it.
pub(super) enum Fate {
    /// It did not happen, and another node leads.
    Elsewhere(Option<SmolStr>),
    /// It did not happen, and may go better soon.
    Later(Error),
    /// It did not happen, because the node has too much to do; it may go better after this time.
    After(Duration, Error),
    /// Nobody knows whether it happened.
    Unknown(Error),
    /// The session that it named is lost.
    SessionLost,
    /// This is the answer.
    Final(Error),
}

pub(super) fn fate(error: v1::Error, lock: &str) -> Fate {
    let text = SmolStr::new(&error.message);
    Fate::Final(match error.code.as_str() {
        "not_leader" => {
            return Fate::Elsewhere((!error.leader.is_empty()).then(|| SmolStr::new(&error.leader)));
        }
        "unavailable" if error.may_have_happened => return Fate::Unknown(Error::Unknown(text)),
        "unavailable" => return Fate::Later(Error::Unavailable(text)),
        "session_lost" => return Fate::SessionLost,
        "busy" => Error::Contended { lock: lock.into() },
        "timeout" => Error::Timeout { lock: lock.into() },
        "not_held" => Error::NotHeld { lock: lock.into() },
        "stale_token" => Error::StaleToken { last_token: Token(error.last_token) },
        "version_mismatch" => Error::VersionMismatch { version: error.version },
        "cancelled" => Error::Cancelled,
        "invalid" => Error::Invalid(text),
        "too_large" => Error::TooLarge(text),
        "limit" if error.retry_after_ms > 0 => {
            return Fate::After(Duration::from_millis(error.retry_after_ms), Error::Limit(text));
        }
        "limit" => Error::Limit(text),
        "unsupported" => Error::Unsupported(text),
        "unauthenticated" => Error::Unauthenticated(text),
        "forbidden" => Error::Forbidden(text),
        "deadlock" => Error::Deadlock(text),
        "wounded" => Error::Wounded(text),
        "died" => Error::Died(text),
        _ => Error::Fatal(text),
    })
}

/// A node that answers something else than what was asked speaks another language.
pub(super) fn strange() -> Error {
    Error::Fatal(
        "the node gave an answer that does not fit the question: do its version and ours go together?".into(),
    )
}

pub(super) fn mode(mode: i32) -> Mode {
    if mode == v1::Mode::Shared as i32 { Mode::Shared } else { Mode::Exclusive }
}

pub(super) fn lock_state(lock: v1::LockState) -> LockState {
    LockState {
        lock: lock.lock,
        capacity: lock.capacity,
        last_token: lock.last_token,
        holders: lock.holders.into_iter().map(holder).collect(),
        queue: lock.queue.into_iter().map(waiter).collect(),
        waiting: lock.waiting,
        closed: Duration::from_millis(lock.closed_ms),
    }
}

fn holder(holder: v1::Holder) -> Holder {
    Holder {
        session: holder.session,
        token: holder.token,
        mode: mode(holder.mode),
        owner: holder.owner,
        held: Duration::from_millis(holder.held_ms),
        permits: holder.permits,
        scope: holder.scope,
        value: holder.value,
    }
}

fn waiter(waiter: v1::Waiter) -> Waiter {
    Waiter {
        session: waiter.session,
        position: waiter.position,
        mode: mode(waiter.mode),
        owner: waiter.owner,
        waited: Duration::from_millis(waiter.waited_ms),
        scope: waiter.scope,
        value: waiter.value,
    }
}

pub(super) fn lock_page(page: v1::ListLocksResponse) -> LockPage {
    LockPage { locks: page.locks.into_iter().map(lock_state).collect(), more: page.more }
}

pub(super) fn leader(leader: v1::Leader) -> Leader {
    Leader { value: leader.value, epoch: leader.epoch, owner: leader.owner }
}

pub(super) fn token_check(check: v1::CheckTokenResponse) -> TokenCheck {
    TokenCheck { valid: check.valid, last_token: check.last_token }
}

pub(super) fn value(value: v1::Value) -> Option<Value> {
    (value.version != 0).then(|| Value {
        key: value.key,
        bytes: value.value,
        version: value.version,
        token: (value.token != 0).then_some(Token(value.token)),
    })
}

/// What is not as it should be in the set-up of the cell.
pub(super) fn findings(status: &Status) -> Vec<Finding> {
    let too_far = |member: &Member| Finding {
        code: "round-trip",
        what: format!(
            "the round trip from node {} to node {} takes {} ms, and the timing of node {0} is made for up to {} ms: leaders may \
             change without need",
            status.node_id,
            member.node_id,
            member.round_trip_us.unwrap_or_default() / 1_000,
            status.round_trip_max_ms
        ),
        advice: "restart the nodes one by one with a slower --timing (region or global), the same on all"
            .to_owned(),
    };
    status.too_far().map(too_far).collect()
}

fn disagreement(found: &v1::Disagreement) -> String {
    let v1::Disagreement { index, own_hash, other_hash } = found;
    format!("after entry {index} the lock table has hash {own_hash:016x} here and {other_hash:016x} there")
}

pub(crate) fn status(status: v1::StatusResponse) -> Status {
    Status {
        node_id: status.node_id,
        cell: status.cell,
        version: status.version,
        leader: status.leader,
        term: status.term,
        members: status
            .members
            .into_iter()
            .map(|member| Member {
                node_id: member.node_id,
                address: member.address,
                peer_address: member.peer_address,
                voter: member.voter,
                matched_index: member.matched_index,
                lag: member.lag,
                silent_ms: member.silent_ms,
                round_trip_us: member.round_trip_us,
                disagreement: member.disagreement.as_ref().map(disagreement),
            })
            .collect(),
        last_log_index: status.last_log_index,
        applied_index: status.applied_index,
        snapshot_index: status.snapshot_index,
        purged_index: status.purged_index,
        sessions: status.sessions,
        locks_held: status.locks_held,
        waiting: status.waiting,
        values: status.values,
        last_token: status.last_token,
        cell_time_ms: status.cell_time_ms,
        uptime_ms: status.uptime_ms,
        cell_version: status.cell_version,
        cell_version_max: status.cell_version_max,
        heartbeat_ms: status.heartbeat_ms,
        election_timeout_ms: status.election_timeout_ms,
        round_trip_max_ms: status.round_trip_max_ms,
        unix_ms: status.unix_ms,
        table_hash: format!("{:016x}", status.table_hash),
        table_hash_index: status.table_hash_index,
        disagreement: status.disagreement.as_ref().map(disagreement),
        state_bytes: status.state_bytes,
        state_bytes_max: status.state_bytes_max,
        trouble: status.trouble,
    }
}
