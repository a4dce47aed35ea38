//! A set under a lock, with pauses of whoever holds it.

use std::time::{Duration, Instant};

use crate::lab::actor::Actor;
use crate::lab::client::{Step, Updates};
use crate::lab::error::LabError;
use crate::lab::event::What;
use crate::lab::random::Random;
use crate::lab::stage::Stage;
use crate::lab::yard::Shape;

const CLIENTS: usize = 5;
const TTL: Duration = Duration::from_secs(2);
/// Three pauses.
const FOR: Duration = Duration::from_secs(18);
const PAUSE_EVERY: Duration = Duration::from_secs(5);
/// How long the work inside takes, on average.
const INSIDE_MS: u64 = 30;
/// And outside: somebody who is inside when a stale write strikes wipes that out in turn, so the lock must be free at times.
const OUTSIDE_MS: u64 = 600;
/// Beyond the lease, so that others have been at work when it goes on.
const BEYOND: Duration = Duration::from_millis(2000);

pub(super) fn play(stage: &mut Stage<'_>) -> Result<(), LabError> {
    let url = stage.servers(Shape::Single)?.url();
    let mut random = Random::new(stage.seed);
    let mut clients: Vec<Actor> = (0..CLIENTS)
        .map(|number| stage.client(&format!("C{}", number + 1), &url, 1, TTL))
        .collect::<Result<_, _>>()?;
    // Consul takes no lease this short, and lets one live for up to twice its time to live.
    let lease = match stage.ttl(TTL) {
        ttl if ttl > TTL => 2 * ttl,
        ttl => ttl,
    };
    let long = FOR.max(lease + BEYOND + PAUSE_EVERY);
    for client in &mut clients {
        client.tell(&Step::Updates(Updates {
            for_ms: long.as_millis() as u64,
            inside_ms: INSIDE_MS,
            outside_ms: OUTSIDE_MS,
            seed: random.next(),
        }))?;
    }
    let until = Instant::now() + long;
    let mut next = Instant::now() + PAUSE_EVERY / 2;
    while next + lease + BEYOND < until {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let Some(holder) = holder(stage, &mut clients, &mut random)? else { break };
        stage.say(&format!("{} is stopped", clients[holder].name));
        std::thread::sleep(lease + BEYOND);
        clients[holder].go_on()?;
        next += PAUSE_EVERY.max(lease + BEYOND);
    }
    for client in &mut clients {
        until_done(client)?;
    }
    let tally = stage.resource.tally();
    let percent = tally.lost as f64 * 100.0 / tally.acknowledged.max(1) as f64;
    stage.findings.figure("acknowledged updates lost", (percent * 10.0).round() / 10.0, "%");
    Ok(())
}

/// Stops one who holds the lock at this moment, has read and not yet written. Who it is, is chance.
fn holder(stage: &Stage<'_>, clients: &mut [Actor], random: &mut Random) -> Result<Option<usize>, LabError> {
    let until = Instant::now() + Duration::from_secs(10);
    // A few rounds are let go by, so that the pauses do not all strike at the same point.
    let mut skip = random.below(5);
    while Instant::now() < until {
        let last = stage.record.last_read();
        let Some(number) = clients.iter().position(|client| Some(&client.name) == last.as_ref()) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        if skip > 0 {
            skip -= 1;
            std::thread::sleep(Duration::from_millis(INSIDE_MS));
            continue;
        }
        clients[number].stop()?;
        // It may have gone on in between.
        if stage.record.last_read().as_ref() == Some(&clients[number].name) {
            return Ok(Some(number));
        }
        clients[number].go_on()?;
    }
    Ok(None)
}

fn until_done(client: &mut Actor) -> Result<(), LabError> {
    while !matches!(client.answer()?, What::Worked { .. }) {}
    Ok(())
}
