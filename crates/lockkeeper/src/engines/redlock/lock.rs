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
use crate::engines::redis::lock::{self as of_one, Lease};
use crate::engines::redis::session::Instance;
use crate::engines::runtime::leases::{OwnerId, Taken};
use crate::error::Error;

/// `SET NX PX`, or the same again if it is ours already: a retry is the same request.
static PLANT: LazyLock<Script> = LazyLock::new(|| {
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

/// Releases may take longer than votes: nobody's lease depends on them.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a release is repeated on an instance that does not answer. Its key expires in any case.
const RELEASE_RETRY: Duration = Duration::from_secs(10);

pub(super) async fn take(
    instances: &Instances,
    request: &AcquireRequest,
    owner: &OwnerId,
) -> Result<Taken<Lease>, Error> {
    let lease = Lease { owner: owner.clone(), keys: of_one::keys(request) };
    // From before the first request: whatever the answers take is lost time.
    let started = Moment::now();
    let timeout = instances.timeout(request.ttl);
    let answers = on_all(instances, timeout, |instance| plant(instance, &lease, request.ttl)).await;
    let yes = answers.iter().filter(|answer| matches!(answer, Ok(true))).count();
    let deadline = Deadline::new(started, request.ttl);
    let is_valid = deadline.at().is_ok_and(|at| Moment::now() < at);
    if yes >= instances.majority() && is_valid {
        return Ok(Taken::Granted { lease, token: None, deadline: Arc::new(deadline) });
    }
    // On all: one that did not answer may have set it all the same.
    release(instances, &lease).await;
    let no = answers.iter().filter(|answer| matches!(answer, Ok(false))).count();
    if yes + no >= instances.majority() {
        return Ok(Taken::Busy { free_in: Some(wait::look_again()) });
    }
    Err(too_few(instances, answers))
}

pub(super) async fn renew(instances: &Instances, lease: &Lease, ttl: Duration) -> Result<bool, Error> {
    let timeout = instances.timeout(ttl);
    let answers = on_all(instances, timeout, |instance| of_one::renew(instance, lease, ttl)).await;
    let yes = answers.iter().filter(|answer| matches!(answer, Ok(true))).count();
    let no = answers.iter().filter(|answer| matches!(answer, Ok(false))).count();
    if yes >= instances.majority() {
        if no > 0 {
            // An instance that came back empty votes for us again, from the next renewal on. It is not counted now.
            let _ = on_all(instances, timeout, |instance| plant(instance, lease, ttl)).await;
        }
        return Ok(true);
    }
    // So many have forgotten it that no majority can be left.
    if no > instances.all.len() - instances.majority() {
        return Ok(false);
    }
    Err(too_few(instances, answers))
}

/// Releases on all instances, also on those that did not answer. Another take in the same name may follow.
async fn release(instances: &Instances, lease: &Lease) -> Vec<Result<bool, Error>> {
    on_all(instances, RELEASE_TIMEOUT, |instance| of_one::release_with_script(instance, lease)).await
}

/// The same when no take in this name follows: the release is repeated on instances that do not answer now.
pub(super) async fn release_for_good(instances: &Instances, lease: &Lease) -> Result<bool, Error> {
    let answers = release(instances, lease).await;
    let yes = answers.iter().filter(|answer| matches!(answer, Ok(true))).count();
    let no = answers.iter().filter(|answer| matches!(answer, Ok(false))).count();
    // Without a majority the caller itself asks again, all of them.
    if yes + no < instances.majority() {
        return Err(too_few(instances, answers));
    }
    for (instance, _) in instances.all.iter().zip(&answers).filter(|(_, answer)| answer.is_err()) {
        let (instance, lease) = (instance.clone(), lease.clone());
        instances.release_later(async move {
            let retrying = async {
                let mut attempt = 0;
                while of_one::release_with_script(&instance, &lease).await.is_err() {
                    attempt += 1;
                    tokio::time::sleep(backoff::pause(attempt)).await;
                }
            };
            let _ = tokio::time::timeout(RELEASE_RETRY, retrying).await;
        });
    }
    Ok(if no >= instances.majority() { false } else { yes > 0 })
}

async fn plant(instance: &Instance, lease: &Lease, ttl: Duration) -> Result<bool, Error> {
    let mut script = PLANT.prepare_invoke();
    script.key(&lease.keys[0]).arg(&lease.owner.0).arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    Ok(instance.run::<i64>(&script).await? == 1)
}

/// All at once, each with a time-out of its own.
async fn on_all<'a, F>(
    instances: &'a Instances,
    timeout: Duration,
    work: impl Fn(&'a Instance) -> F,
) -> Vec<Result<bool, Error>>
where
    F: Future<Output = Result<bool, Error>>,
{
    let all = instances.all.iter().map(|instance| {
        let work = work(instance);
        async move {
            tokio::time::timeout(timeout, work)
                .await
                .unwrap_or_else(|_| Err(Error::unavailable(format!("Redis at {} is slow", instance.address))))
        }
    });
    join_all(all).await
}

fn too_few(instances: &Instances, answers: Vec<Result<bool, Error>>) -> Error {
    let reached = answers.iter().filter(|answer| answer.is_ok()).count();
    let first = answers.into_iter().find_map(Result::err).map(|error| error.to_string()).unwrap_or_default();
    Error::unavailable(format!(
        "{reached} of {} Redis instances answered in time, and a majority of {} is needed: {first}",
        instances.all.len(),
        instances.majority()
    ))
}
