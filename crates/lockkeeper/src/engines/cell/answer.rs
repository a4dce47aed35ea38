//! Conversions from the wire to the library's types.

use std::time::Duration;

use lockkeeper_api::{Code, Error as ContractError, v1};
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
    let Ok(mut error) = ContractError::try_from(error) else { return ErrorAction::Final(Error::Fatal(text)) };
    error.lock = Some(lock.to_owned());
    match error.code {
        Code::NotLeader => ErrorAction::Redirect(error.leader.flatten().map(SmolStr::from)),
        Code::SessionLost => ErrorAction::SessionLost,
        Code::Unavailable if error.may_have_happened == Some(true) => {
            ErrorAction::Unknown(Error::from_contract(error))
        }
        Code::Unavailable => ErrorAction::Retry(Error::from_contract(error)),
        Code::Limit => match error.retry_after_ms {
            Some(ms) => ErrorAction::RetryAfter(Duration::from_millis(ms), Error::from_contract(error)),
            None => ErrorAction::Final(Error::from_contract(error)),
        },
        Code::Busy
        | Code::Timeout
        | Code::NotHeld
        | Code::StaleToken
        | Code::VersionMismatch
        | Code::Invalid
        | Code::TooLarge
        | Code::Unsupported
        | Code::Unauthenticated
        | Code::Forbidden
        | Code::Deadlock
        | Code::Wounded
        | Code::Died => ErrorAction::Final(Error::from_contract(error)),
    }
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
