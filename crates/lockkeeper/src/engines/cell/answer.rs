//! From the wire to the library's own types.

use std::time::Duration;

use lockkeeper_api::{Code, v1};
use lockkeeper_core::Token;
use smol_str::SmolStr;

use crate::capabilities::Finding;
use crate::error::Error;
use crate::mode::Mode;
use crate::value::Value;
use crate::view::{Member, Status};

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
    let Ok(code) = error.code.parse::<Code>() else { return Fate::Final(Error::Fatal(text)) };
    Fate::Final(match code {
        Code::NotLeader => {
            return Fate::Elsewhere((!error.leader.is_empty()).then(|| SmolStr::new(&error.leader)));
        }
        Code::Unavailable if error.may_have_happened => return Fate::Unknown(Error::Unknown(text)),
        Code::Unavailable => return Fate::Later(Error::Unavailable(text)),
        Code::SessionLost => return Fate::SessionLost,
        Code::Busy => Error::Contended { lock: lock.into() },
        Code::Timeout => Error::Timeout { lock: lock.into() },
        Code::NotHeld => Error::NotHeld { lock: lock.into() },
        Code::StaleToken => Error::StaleToken { last_token: Token(error.last_token) },
        Code::VersionMismatch => Error::VersionMismatch { version: error.version },
        Code::Invalid => Error::Invalid(text),
        Code::TooLarge => Error::TooLarge(text),
        Code::Limit if error.retry_after_ms > 0 => {
            return Fate::After(Duration::from_millis(error.retry_after_ms), Error::Limit(text));
        }
        Code::Limit => Error::Limit(text),
        Code::Unsupported => Error::Unsupported(text),
        Code::Unauthenticated => Error::Unauthenticated(text),
        Code::Forbidden => Error::Forbidden(text),
        Code::Deadlock => Error::Deadlock(text),
        Code::Wounded => Error::Wounded(text),
        Code::Died => Error::Died(text),
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
