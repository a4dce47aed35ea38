//! A client that uses the library and honours its deadline.

use std::time::Duration;

use lockkeeper::{Error, Guard, Keeper};
use lockkeeper_lab::checkers::history::{Hold, Write};

use crate::LOCKS;
use crate::harness::random::Random;
use crate::recorder::Recorder;

/// Short, so that outages last longer than leases.
const TTL: Duration = Duration::from_secs(2);

/// Runs until the end of the test.
pub(crate) async fn run(number: u32, url: String, recorder: Recorder, mut random: Random) {
    let connect = async || {
        loop {
            let owner = format!("client-{number}");
            match Keeper::builder().owner(owner).ttl(TTL).connect(&url).await {
                Ok(keeper) => return keeper,
                Err(_) => recorder.count("connects failed"),
            }
        }
    };
    let mut keeper = connect().await;
    let (mut writes, mut requests) = (0, 0);
    while !recorder.is_over() {
        let lock = *random.one_of(&LOCKS);
        match random.below(14) {
            0 => read(&keeper, lock, &recorder).await,
            1 | 2 => observe_queue(&keeper, lock, &recorder).await,
            // The client is dropped and replaced by a new one.
            3 => {
                drop(std::mem::replace(&mut keeper, connect().await));
                recorder.count("clients replaced");
            }
            _ => {
                let invoked = recorder.now();
                requests += 1;
                // The name of the request in the queue.
                let request = format!("{number}-{requests}");
                let wanted = keeper.lock(lock).announce(request.as_str());
                let wanted = wanted.wait(Duration::from_millis(500 + random.below(4_000)));
                match wanted.acquire().await {
                    Ok(guard) => {
                        recorder.record_granted_request(request, guard.token().0);
                        let from = recorder.grant(number, lock, guard.token().0, invoked);
                        work(number, &keeper, guard, from, &recorder, &mut random, &mut writes).await;
                    }
                    Err(error) => recorder.count(&format!("acquires {}", error.code())),
                }
            }
        }
    }
    // A session that cannot be closed now expires.
    let _ = keeper.close().await;
}

async fn read(keeper: &Keeper, key: &str, recorder: &Recorder) {
    let invoked = recorder.now();
    match keeper.value(key).get().await {
        Ok(Some(value)) => {
            recorder.read(key, String::from_utf8(value.bytes).unwrap(), value.version, invoked);
        }
        Ok(None) => recorder.read(key, String::new(), 0, invoked),
        Err(error) => recorder.count(&format!("reads {}", error.code())),
    }
}

async fn observe_queue(keeper: &Keeper, lock: &str, recorder: &Recorder) {
    match keeper.who(lock).await {
        Ok(seen) => recorder.queue(lock, seen.queue.into_iter().map(|waiter| waiter.value).collect()),
        Err(error) => recorder.count(&format!("queue reads {}", error.code())),
    }
}

/// Whether the error reports a lost grant.
fn is_loss(error: &Error) -> bool {
    matches!(error, Error::NotHeld { .. } | Error::SessionLost | Error::StaleToken { .. })
}

/// Holds the lock for a while, and writes under its token.
async fn work(
    number: u32,
    keeper: &Keeper,
    guard: Guard,
    from: Duration,
    recorder: &Recorder,
    random: &mut Random,
    writes: &mut u64,
) {
    let (lock, token) = (guard.lock_name().to_owned(), guard.token().0);
    let mut hold = Hold { client: number, lock: lock.clone(), token, from, until: from };
    for _ in 0..random.below(6) {
        // Clock first: a lease that is valid afterwards was valid at this time.
        let now = recorder.now();
        let remaining = guard.remaining();
        if remaining.is_zero() {
            recorder.count("holds ended by the deadline");
            break;
        }
        hold.until = now;
        if random.below(2) == 0 {
            *writes += 1;
            let value = format!("{number}-{writes}");
            let put = keeper.value(lock.clone()).fence(&guard).put(value.clone().into_bytes()).await;
            let version = match put {
                Ok(version) => Some(version),
                Err(Error::Unknown(_)) => None,
                Err(error) => {
                    if is_loss(&error) {
                        recorder.lost(&hold, now + remaining, error.code());
                    }
                    recorder.count(&format!("writes {}", error.code()));
                    continue;
                }
            };
            let returned = recorder.now();
            recorder.write(Write { key: lock.clone(), value, token, version, invoked: now, returned });
        } else {
            // Some holds last longer than an election.
            let longest = if random.below(10) == 0 { 1_500 } else { 20 };
            tokio::time::sleep(Duration::from_millis(random.below(longest))).await;
        }
    }
    let now = recorder.now();
    let remaining = guard.remaining();
    if !remaining.is_zero() {
        hold.until = now;
    }
    recorder.hold(hold.clone());
    match random.below(4) {
        0 => drop(guard),
        _ => match guard.release().await {
            Ok(()) => recorder.release(&hold, now),
            Err(error) => {
                if is_loss(&error) && !remaining.is_zero() {
                    recorder.lost(&hold, now + remaining, error.code());
                }
                recorder.count(&format!("releases {}", error.code()));
            }
        },
    }
}
