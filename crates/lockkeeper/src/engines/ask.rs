//! What an engine made by others must look at before it asks its server, the same for all of them: the cell does this
//! on its own side.

use std::time::Duration;

use lockkeeper_core::Refusal;
use lockkeeper_core::limits::{self, check_name};

use super::{Ask, Wait};
use crate::capabilities::Capabilities;
use crate::error::Error;
use crate::mode::Mode;

/// What the engine cannot do is refused here, in plain words.
pub(crate) fn check(ask: &Ask, can: &Capabilities) -> Result<(), Error> {
    let locks = ask.locks.as_slice();
    for lock in locks {
        check_name("name of the lock", lock).map_err(refused)?;
    }
    if let Some(request) = &ask.request {
        limits::check_length("request id", request.len(), limits::REQUEST_BYTES_MAX).map_err(refused)?;
    }
    check_ttl(ask.ttl, can)?;
    let cannot = |what: &str, instead: &str| {
        Err(Error::unsupported(format!("the engine {} cannot {what}: {instead}", can.engine)))
    };
    const ELSEWHERE: &str = "see the table of engines for those that can";
    if ask.mode == Mode::Shared && !can.shared {
        return cannot("share a lock", ELSEWHERE);
    }
    if ask.capacity.is_some_and(|capacity| capacity != 1) && !can.counted {
        return cannot("count permits", ELSEWHERE);
    }
    if locks.len() > 1 && !can.several {
        return cannot("take several locks at once", "take one after the other, always in the same order");
    }
    if ask.scope.is_some() {
        return cannot("prevent deadlocks", "take several locks in one order, or with a limit for each wait");
    }
    if ask.value.is_some() && !can.elections {
        return cannot("hold an election", ELSEWHERE);
    }
    if !ask.lock_delay.is_zero() && !can.lock_delay {
        return cannot("keep a lock closed after a loss", ELSEWHERE);
    }
    let value_bytes = ask.value.as_ref().map_or(0, |value| value.len());
    limits::check_length("candidate's value", value_bytes, limits::CANDIDATE_BYTES_MAX).map_err(refused)?;
    check_permits(ask)
}

fn check_ttl(ttl: Duration, can: &Capabilities) -> Result<(), Error> {
    if ttl < can.ttl_min || ttl > can.ttl_max {
        return Err(Error::invalid(format!(
            "a time to live of {ttl:?} is not possible with the engine {}: it must be between {:?} and {:?}",
            can.engine, can.ttl_min, can.ttl_max
        )));
    }
    Ok(())
}

fn check_permits(ask: &Ask) -> Result<(), Error> {
    let (permits, capacity) = (ask.permits.unwrap_or(1), ask.capacity.unwrap_or(1));
    if capacity == 0 || capacity > limits::CAPACITY_MAX || permits == 0 {
        return Err(Error::invalid(format!(
            "{permits} of {capacity} permits make no sense: name at least 1 of each, and at most {}",
            limits::CAPACITY_MAX
        )));
    }
    if permits > capacity {
        return Err(Error::invalid(format!(
            "{permits} permits are asked for, but the lock has {capacity}: ask for fewer"
        )));
    }
    if ask.mode == Mode::Shared && capacity > 1 {
        return Err(Error::invalid("a lock is either shared or counted: leave one of them out"));
    }
    if ask.locks.as_slice().len() > 1 && (ask.mode == Mode::Shared || capacity > 1) {
        return Err(Error::invalid("several locks at once are held alone: neither shared nor counted"));
    }
    Ok(())
}

fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::TooLarge(text) => Error::TooLarge(text),
        other => Error::invalid(other.to_string()),
    }
}

/// The answer when the lock could not be had.
pub(crate) fn not_granted(ask: &Ask) -> Error {
    let lock = ask.locks.as_slice()[0].clone();
    match ask.wait {
        Wait::No => Error::Contended { lock },
        _ => Error::Timeout { lock },
    }
}
