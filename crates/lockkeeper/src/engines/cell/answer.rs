//! Conversions from the wire to the library's types.

use std::time::Duration;

use lockkeeper_api::{Code, v1};
use lockkeeper_core::Token;
use smol_str::SmolStr;

use crate::capabilities::Finding;
use crate::error::Error;
use crate::mode::Mode;
use crate::value::Value;
use crate::view::{Member, Status};

/// What to do after an error from a node.
pub(super) enum ErrorAction {
    /// It did not happen, and another node leads.
    Redirect(Option<SmolStr>),
    /// It did not happen, and a retry may succeed soon.
    Retry(Error),
    /// It did not happen because the node is overloaded; retry after this time.
    RetryAfter(Duration, Error),
    /// It may have happened.
    Unknown(Error),
    /// The session of the request is lost.
    SessionLost,
    /// The error is the answer to the caller.
    Final(Error),
}

pub(super) fn classify(error: v1::Error, lock: &str) -> ErrorAction {
    let text = SmolStr::new(&error.message);
    let Ok(code) = error.code.parse::<Code>() else { return ErrorAction::Final(Error::Fatal(text)) };
    ErrorAction::Final(match code {
        Code::NotLeader => {
            return ErrorAction::Redirect((!error.leader.is_empty()).then(|| SmolStr::new(&error.leader)));
        }
        Code::Unavailable if error.may_have_happened => return ErrorAction::Unknown(Error::Unknown(text)),
        Code::Unavailable => return ErrorAction::Retry(Error::Unavailable(text)),
        Code::SessionLost => return ErrorAction::SessionLost,
        Code::Busy => Error::Contended { lock: lock.into() },
        Code::Timeout => Error::Timeout { lock: lock.into() },
        Code::NotHeld => Error::NotHeld { lock: lock.into() },
        Code::StaleToken => Error::StaleToken { last_token: Token(error.last_token) },
        Code::VersionMismatch => Error::VersionMismatch { version: error.version },
        Code::Invalid => Error::Invalid(text),
        Code::TooLarge => Error::TooLarge(text),
        Code::Limit if error.retry_after_ms > 0 => {
            return ErrorAction::RetryAfter(Duration::from_millis(error.retry_after_ms), Error::Limit(text));
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

/// The error for an answer of the wrong type.
pub(super) fn unexpected_answer() -> Error {
    Error::Fatal(
        "the node sent an answer of an unexpected type: check that the versions of node and client are compatible".into(),
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

/// Weak spots in the configuration of the cell.
pub(super) fn findings(status: &Status) -> Vec<Finding> {
    let too_far = |member: &Member| Finding {
        code: "round-trip",
        what: format!(
            "the round trip from node {} to node {} takes {} ms, but the timing of node {0} allows only {} ms: the cell may \
             change leaders unnecessarily",
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
