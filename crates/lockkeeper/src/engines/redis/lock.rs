//! Scripts that take, renew and release a lock: each runs atomically on the server.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use lockkeeper_core::Token;
use redis::{Script, Value};

use super::session::Instance;
use super::token::COUNTER;
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::engines::AcquireRequest;
use crate::engines::runtime::leases::{OwnerId, Taken};
use crate::error::Error;
use crate::mode::Mode;

static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("take.lua")));
static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("renew.lua")));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("release.lua")));

/// A lease: its owner and its keys.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) owner: OwnerId,
    pub(crate) keys: Arc<[String]>,
}

/// The key of a lock.
pub(crate) fn key(lock: &str) -> String {
    format!("lockkeeper:lock:{lock}")
}

pub(crate) fn keys(request: &AcquireRequest) -> Arc<[String]> {
    request.locks.as_slice().iter().map(|lock| key(lock)).collect()
}

fn milliseconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

pub(super) async fn take(
    instance: &Instance,
    request: &AcquireRequest,
    owner: &OwnerId,
    owner_label: &str,
) -> Result<Taken<Lease>, Error> {
    let keys = keys(request);
    let kind = match (request.mode, request.capacity.unwrap_or(1)) {
        (Mode::Shared, _) => "s".to_owned(),
        (Mode::Exclusive, 1) => "x".to_owned(),
        (Mode::Exclusive, capacity) => capacity.to_string(),
    };
    let mut script = TAKE.prepare_invoke();
    for key in keys.iter() {
        script.key(key);
    }
    script.key(COUNTER).arg(&owner.0).arg(milliseconds(request.ttl)).arg(kind);
    script.arg(request.permits.unwrap_or(1)).arg(owner_label);
    let sent = Moment::now();
    match instance.run_script::<(i64, Value)>(&script).await? {
        (1, token) => Ok(Taken::Granted {
            lease: Lease { owner: owner.clone(), keys },
            token: Some(Token(redis::from_redis_value(token).unwrap_or_default())),
            deadline: Arc::new(Deadline::new(sent, request.ttl)),
        }),
        (0, free_in) => Ok(Taken::Busy {
            free_in: redis::from_redis_value::<i64>(free_in)
                .ok()
                .and_then(|ms| u64::try_from(ms).ok())
                .map(Duration::from_millis),
        }),
        (_, other) => {
            let name = &request.locks.as_slice()[0];
            Err(match redis::from_redis_value::<String>(other).unwrap_or_default().as_str() {
                "s" => Error::Contended { lock: name.clone() },
                capacity if capacity.parse::<u32>().is_ok() => Error::invalid(format!(
                    "\"{name}\" is in use with capacity {capacity}: request the same capacity, or wait until it is free"
                )),
                kind => Error::invalid(format!(
                    "the key of \"{name}\" holds a {kind} that is not a lock: choose another name, or delete the key"
                )),
            })
        }
    }
}

pub(crate) async fn renew(instance: &Instance, lease: &Lease, ttl: Duration) -> Result<bool, Error> {
    let mut script = RENEW.prepare_invoke();
    for key in lease.keys.iter() {
        script.key(key);
    }
    script.arg(&lease.owner.0).arg(milliseconds(ttl));
    Ok(instance.run_script::<i64>(&script).await? == 1)
}

/// Releases a lease; false unless all its locks were held.
pub(crate) async fn release(instance: &Instance, lease: &Lease) -> Result<bool, Error> {
    let mut script = RELEASE.prepare_invoke();
    for key in lease.keys.iter() {
        script.key(key);
    }
    script.arg(&lease.owner.0);
    Ok(instance.run_script::<usize>(&script).await? == lease.keys.len())
}

/// Releases a lease with a single EVAL that contains the script. Unlike EVALSHA, it takes effect even if it arrives after
/// the client has stopped waiting: no second message is needed when the server does not know the script.
#[cfg(feature = "redlock")]
pub(crate) async fn release_with_script(instance: &Instance, lease: &Lease) -> Result<bool, Error> {
    let mut eval = redis::cmd("EVAL");
    eval.arg(include_str!("release.lua")).arg(lease.keys.len()).arg(&*lease.keys).arg(&lease.owner.0);
    Ok(instance.query::<usize>(&eval).await? == lease.keys.len())
}
