//! A set under a lock, with pauses of its holder.

use std::time::{Duration, Instant};

use crate::lab::client::{Step, Updates};
use crate::lab::client_process::ClientProcess;
use crate::lab::error::LabError;
use crate::lab::event::EventKind;
use crate::lab::random::Random;
use crate::lab::scenario_run::ScenarioRun;
use crate::lab::server_pool::Topology;

const CLIENTS: usize = 5;
const TTL: Duration = Duration::from_secs(2);
/// Long enough for three pauses.
const FOR: Duration = Duration::from_secs(18);
const PAUSE_EVERY: Duration = Duration::from_secs(5);
/// Mean duration of the work under the lock.
const INSIDE_MS: u64 = 30;
/// Mean time between two rounds. A holder that writes after a stale write overwrites that in turn, so the lock must be free at times.
const OUTSIDE_MS: u64 = 600;
/// Pause beyond the lease, so that others have worked when the holder is resumed.
const BEYOND: Duration = Duration::from_millis(2000);

pub(super) fn run(run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    let url = run.servers(Topology::Single)?.url();
    let mut random = Random::new(run.seed);
    let mut clients: Vec<ClientProcess> = (0..CLIENTS)
        .map(|number| run.client(&format!("C{}", number + 1), &url, 1, TTL))
        .collect::<Result<_, _>>()?;
    // Consul accepts no lease this short, and may keep one for twice its time to live.
    let lease = match run.ttl(TTL) {
        ttl if ttl > TTL => 2 * ttl,
        ttl => ttl,
    };
    let long = FOR.max(lease + BEYOND + PAUSE_EVERY);
    for client in &mut clients {
        client.send(&Step::Updates(Updates {
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
        let Some(holder) = pause_holder(run, &mut clients, &mut random)? else { break };
        run.report_progress(&format!("{} is paused", clients[holder].name));
        std::thread::sleep(lease + BEYOND);
        clients[holder].resume()?;
        next += PAUSE_EVERY.max(lease + BEYOND);
    }
    for client in &mut clients {
        until_done(client)?;
    }
    let counts = run.resource.counts();
    let percent = counts.lost as f64 * 100.0 / counts.acknowledged.max(1) as f64;
    run.findings.figure("acknowledged updates lost", (percent * 10.0).round() / 10.0, "%");
    Ok(())
}

/// Pauses a client that holds the lock, has read and has not yet written. The choice is random.
fn pause_holder(
    run: &ScenarioRun<'_>,
    clients: &mut [ClientProcess],
    random: &mut Random,
) -> Result<Option<usize>, LabError> {
    let until = Instant::now() + Duration::from_secs(10);
    // Skips a few rounds, so that the pauses happen at different points.
    let mut skip = random.below(5);
    while Instant::now() < until {
        let last = run.events.last_read();
        let Some(number) = clients.iter().position(|client| Some(&client.name) == last.as_ref()) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        if skip > 0 {
            skip -= 1;
            std::thread::sleep(Duration::from_millis(INSIDE_MS));
            continue;
        }
        clients[number].pause()?;
        // It may have written meanwhile.
        if run.events.last_read().as_ref() == Some(&clients[number].name) {
            return Ok(Some(number));
        }
        clients[number].resume()?;
    }
    Ok(None)
}

fn until_done(client: &mut ClientProcess) -> Result<(), LabError> {
    while !matches!(client.answer()?, EventKind::Worked { .. }) {}
    Ok(())
}
