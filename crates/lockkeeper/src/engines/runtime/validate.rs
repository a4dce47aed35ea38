//! Validation of a request before the call to the server, for all engines on other vendors' servers. A cell validates on its
//! own side.

use std::time::Duration;

use lockkeeper_core::Refusal;
use lockkeeper_core::admission::Demand;
use lockkeeper_core::limits::{self, check_name};

use crate::capabilities::Capabilities;
use crate::engines::AcquireRequest;
use crate::error::Error;
use crate::mode::Mode;

/// Refuses what the engine does not support.
pub(super) fn check(request: &AcquireRequest, can: &Capabilities) -> Result<(), Error> {
    let locks = request.locks.as_slice();
    for lock in locks {
        check_name("name of the lock", lock).map_err(refused)?;
    }
    if let Some(id) = &request.request_id {
        limits::check_length("request id", id.len(), limits::REQUEST_BYTES_MAX).map_err(refused)?;
    }
    check_ttl(request.ttl, can)?;
    let cannot = |what: &str, instead: &str| {
        Err(Error::unsupported(format!("the engine {} cannot {what}: {instead}", can.engine)))
    };
    const ELSEWHERE: &str = "see the table in docs/engines.md for engines that can";
    if request.mode == Mode::Shared && !can.shared {
        return cannot("share a lock", ELSEWHERE);
    }
    if request.capacity.is_some_and(|capacity| capacity != 1) && !can.counted {
        return cannot("count permits", ELSEWHERE);
    }
    if locks.len() > 1 && !can.several {
        return cannot(
            "acquire several locks at once",
            "acquire one after the other, always in the same order",
        );
    }
    if request.scope.is_some() {
        return cannot("prevent deadlocks", "acquire several locks in a fixed order, or limit each wait");
    }
    if request.value.is_some() && !can.elections {
        return cannot("hold an election", ELSEWHERE);
    }
    if !request.lock_delay.is_zero() && !can.lock_delay {
        return cannot("enforce a lock-delay", ELSEWHERE);
    }
    let value_bytes = request.value.as_ref().map_or(0, |value| value.len());
    limits::check_length("candidate's value", value_bytes, limits::CANDIDATE_BYTES_MAX).map_err(refused)?;
    check_permits(request)
}

fn check_ttl(ttl: Duration, can: &Capabilities) -> Result<(), Error> {
    if ttl < can.ttl_min || ttl > can.ttl_max {
        return Err(Error::invalid(format!(
            "the engine {} does not support a time to live of {ttl:?}: choose one between {:?} and {:?}",
            can.engine, can.ttl_min, can.ttl_max
        )));
    }
    Ok(())
}

fn check_permits(request: &AcquireRequest) -> Result<(), Error> {
    let demand = demand(request)?;
    if let Some(capacity) = request.capacity.filter(|capacity| *capacity > limits::CAPACITY_MAX) {
        return Err(Error::invalid(format!(
            "the capacity {capacity} is too large: choose at most {}",
            limits::CAPACITY_MAX
        )));
    }
    if request.mode == Mode::Shared && demand.is_counted() {
        return Err(Error::invalid("a lock is either shared or counted: remove one of them"));
    }
    if request.locks.as_slice().len() > 1 && (request.mode == Mode::Shared || demand.is_counted()) {
        return Err(Error::invalid(
            "several locks at once are exclusive: request them neither shared nor counted",
        ));
    }
    Ok(())
}

/// The demand of a request. A counted lock without permits means one permit.
pub(super) fn demand(request: &AcquireRequest) -> Result<Demand, Error> {
    let counted = request.capacity.is_some_and(|capacity| capacity > 1);
    let permits = request.permits.or(counted.then_some(1));
    Demand::of(request.mode, permits, request.capacity, None).map_err(refused)
}

pub(super) fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::TooLarge(text) => Error::TooLarge(text),
        other => Error::invalid(other.to_string()),
    }
}
