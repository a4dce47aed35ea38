//! How long locks cannot be had when the leader of three is killed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::contender::BenchError;
use super::bare_etcd::BareEtcd;
use super::site::Site;
use super::target::Target;

/// Everybody is back and the members are quiet.
const SETTLE: Duration = Duration::from_secs(2);
const GIVES_UP: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(10);

/// From the end of the leader to the next grant, with a client that takes and gives back a lock all the time.
#[derive(Debug, Clone, Serialize)]
pub struct FailOver {
    /// Which target.
    pub engine: &'static str,
    /// Of all rounds, in milliseconds.
    pub median_ms: f64,
    /// The longest.
    pub longest_ms: f64,
    /// How many rounds.
    pub rounds: usize,
}

/// Kills the leader `rounds` times. `None` if there is nobody to take over.
pub(super) async fn measure(site: &mut Site, rounds: usize) -> Result<Option<FailOver>, BenchError> {
    if !matches!(site.target, Target::Cell3 | Target::Etcd | Target::Zookeeper) {
        return Ok(None);
    }
    // When the last grant was asked for, and when it came.
    let last = Arc::new(Mutex::new((Instant::now(), Instant::now())));
    let worker = {
        let (keeper, last) = (site.keeper().await?, last.clone());
        tokio::spawn(async move {
            loop {
                let asked = Instant::now();
                let granted = keeper.lock("bench/fail-over").acquire().await;
                match granted {
                    Ok(guard) => {
                        *last.lock().unwrap_or_else(PoisonError::into_inner) = (asked, Instant::now());
                        // A guard that cannot be given back is given back in the background.
                        let _ = guard.release().await;
                    }
                    Err(_) => tokio::time::sleep(AGAIN).await,
                }
            }
        })
    };
    let mut times = Vec::new();
    for _ in 0..rounds {
        tokio::time::sleep(SETTLE).await;
        let leader = leader(site).await?;
        let killed = Instant::now();
        site.processes[leader].kill();
        let gone = Instant::now();
        times.push(loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let (asked, came) = *last.lock().unwrap_or_else(PoisonError::into_inner);
            // What was asked for before may have been granted before.
            if asked > gone {
                break came - killed;
            }
            if killed.elapsed() > GIVES_UP {
                worker.abort();
                return Err(BenchError::Server(format!(
                    "no grant for {GIVES_UP:?} after the leader was killed"
                )));
            }
        });
        site.processes[leader].start_again()?;
    }
    worker.abort();
    times.sort();
    let ms = |time: &Duration| time.as_secs_f64() * 1_000.0;
    let (median, longest) = (times.get(times.len() / 2), times.last());
    Ok(median.zip(longest).map(|(median, longest)| FailOver {
        engine: site.target.name(),
        median_ms: ms(median),
        longest_ms: ms(longest),
        rounds,
    }))
}

/// Which of the processes leads; waits until one does.
async fn leader(site: &Site) -> Result<usize, BenchError> {
    let began = Instant::now();
    while began.elapsed() < GIVES_UP {
        for number in 0..site.processes.len() {
            if leads(site, number).await {
                return Ok(number);
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
    Err(BenchError::Server(format!("{} has no leader", site.target.name())))
}

async fn leads(site: &Site, number: usize) -> bool {
    let address = &site.addresses[number];
    match site.target {
        Target::Cell3 => {
            let Ok(keeper) = site.keeper().await else { return false };
            let status = keeper.status().await;
            let _ = keeper.close().await;
            status.is_ok_and(|status| status.leader == number as u64 + 1)
        }
        Target::Etcd => match BareEtcd::connect(address).await {
            Ok(member) => member.status().await.is_ok_and(|status| status.leads()),
            Err(_) => false,
        },
        _ => {
            let mut text = String::new();
            if let Ok(mut stream) = TcpStream::connect(address) {
                // One that is just starting may take the question and never answer it.
                let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
                let _ = stream.write_all(b"srvr");
                let _ = stream.read_to_string(&mut text);
            }
            text.contains("Mode: leader")
        }
    }
}
