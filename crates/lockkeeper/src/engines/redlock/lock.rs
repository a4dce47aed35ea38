//! Take, renew and release on a majority.

use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Script;

use super::session::Instances;
use super::wait;
use crate::backoff;
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::engines::AcquireRequest;
use crate::engines::redis::lock::{self as single, Lease};
use crate::engines::redis::session::Instance;
use crate::engines::runtime::leases::{OwnerId, Taken};
use crate::error::Error;

/// `SET NX PX`, or a renewal if the key is already ours, which makes retries idempotent.
static SET_KEY: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
         local value = redis.call('GET', KEYS[1])
         if value and string.sub(value, 1, 40) == ARGV[1] then
           redis.call('PEXPIRE', KEYS[1], ARGV[2])
           return 1
         end
         return 0",
    )
});

/// The timeout of a release. It may be longer than that of a vote, because no lease depends on it.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for which a release is retried on an instance that does not answer. The key expires in any case.
const RELEASE_RETRY_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn take(
    instances: &Instances,
    request: &AcquireRequest,
    owner: &OwnerId,
) -> Result<Taken<Lease>, Error> {
    let lease = Lease { owner: owner.clone(), keys: single::keys(request) };
    // The deadline is counted from before the first request, so the time until the answers arrive is part of it.
    let started = Moment::now();
    let timeout = instances.timeout(request.ttl);
    let answers = on_all(instances, timeout, |instance| set_key(instance, &lease, request.ttl)).await;
    let votes = Votes::count(&answers);
    let deadline = Deadline::new(started, request.ttl);
    let is_valid = deadline.at().is_ok_and(|at| Moment::now() < at);
    if votes.yes >= instances.majority() && is_valid {
        return Ok(Taken::Granted { lease, token: None, deadline: Arc::new(deadline) });
    }
    // On all instances: one that did not answer may have set the key nevertheless.
    release(instances, &lease).await;
    if votes.yes + votes.no >= instances.majority() {
        return Ok(Taken::Busy { free_in: Some(wait::retry_delay()) });
    }
    Err(no_majority(instances, answers))
}

/// The answers of the instances; those that failed are in neither number.
struct Votes {
    yes: usize,
    no: usize,
}

impl Votes {
    fn count(answers: &[Result<bool, Error>]) -> Votes {
        let count =
            |vote| answers.iter().filter(|answer| matches!(answer, Ok(answer) if *answer == vote)).count();
        Votes { yes: count(true), no: count(false) }
    }
}

pub(super) async fn renew(instances: &Instances, lease: &Lease, ttl: Duration) -> Result<bool, Error> {
    let timeout = instances.timeout(ttl);
    let answers = on_all(instances, timeout, |instance| single::renew(instance, lease, ttl)).await;
    let votes = Votes::count(&answers);
    if votes.yes >= instances.majority() {
        if votes.no > 0 {
            // Sets the key again on instances that lost it. They count from the next renewal on, not for this one.
            let _ = on_all(instances, timeout, |instance| set_key(instance, lease, ttl)).await;
        }
        return Ok(true);
    }
    // So many instances have lost the key that the others cannot be a majority.
    if votes.no > instances.all.len() - instances.majority() {
        return Ok(false);
    }
    Err(no_majority(instances, answers))
}

/// Releases once on all instances. The same owner may take the lock again afterwards.
async fn release(instances: &Instances, lease: &Lease) -> Vec<Result<bool, Error>> {
    on_all(instances, RELEASE_TIMEOUT, |instance| single::release_with_script(instance, lease)).await
}

/// Releases on all instances, with retries in the background on those that did not answer. The same owner must not take
/// the lock again afterwards.
pub(super) async fn release_with_retries(instances: &Instances, lease: &Lease) -> Result<bool, Error> {
    let answers = release(instances, lease).await;
    let votes = Votes::count(&answers);
    // Without a majority, the caller retries the release on all instances.
    if votes.yes + votes.no < instances.majority() {
        return Err(no_majority(instances, answers));
    }
    for (instance, _) in instances.all.iter().zip(&answers).filter(|(_, answer)| answer.is_err()) {
        let (instance, lease) = (instance.clone(), lease.clone());
        instances.release_in_background(async move {
            let retries = async {
                let mut attempt = 0;
                while single::release_with_script(&instance, &lease).await.is_err() {
                    attempt += 1;
                    tokio::time::sleep(backoff::pause(attempt)).await;
                }
            };
            let _ = tokio::time::timeout(RELEASE_RETRY_TIMEOUT, retries).await;
        });
    }
    Ok(if votes.no >= instances.majority() { false } else { votes.yes > 0 })
}

async fn set_key(instance: &Instance, lease: &Lease, ttl: Duration) -> Result<bool, Error> {
    let mut script = SET_KEY.prepare_invoke();
    script.key(&lease.keys[0]).arg(&lease.owner.0).arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    Ok(instance.run_script::<i64>(&script).await? == 1)
}

/// Runs an operation on all instances concurrently, each with this timeout.
async fn on_all<'a, F>(
    instances: &'a Instances,
    timeout: Duration,
    operation: impl Fn(&'a Instance) -> F,
) -> Vec<Result<bool, Error>>
where
    F: Future<Output = Result<bool, Error>>,
{
    let all = instances.all.iter().map(|instance| {
        let operation = operation(instance);
        async move {
            tokio::time::timeout(timeout, operation).await.unwrap_or_else(|_| {
                let address = &instance.address;
                Err(Error::unavailable(format!("Redis at {address} did not answer within {timeout:?}")))
            })
        }
    });
    join_all(all).await
}

fn no_majority(instances: &Instances, answers: Vec<Result<bool, Error>>) -> Error {
    let reached = answers.iter().filter(|answer| answer.is_ok()).count();
    let first = answers.into_iter().find_map(Result::err).map(|error| error.to_string()).unwrap_or_default();
    Error::unavailable(format!(
        "{reached} of {} Redis instances answered in time, but a majority of {} is required: {first}",
        instances.all.len(),
        instances.majority()
    ))
}
