//! Fail-over time: how long no lock is granted after the leader of three is killed.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{Keeper, Unfenced};
use serde::Serialize;
use tokio::sync::oneshot;

use super::setup::{Setup, runtime};
use super::{CompareError, Target};
use crate::servers::Servers;

/// Time for the members to settle.
const SETTLE: Duration = Duration::from_secs(2);
const GRANT_WITHIN: Duration = Duration::from_secs(60);
const RETRY_AFTER: Duration = Duration::from_millis(10);
const POLL: Duration = Duration::from_millis(1);

/// Time from the end of the leader to the next grant, with a client that acquires and releases a lock in a loop.
#[derive(Debug, Clone, Serialize)]
pub struct FailOver {
    /// Name of the target.
    pub engine: &'static str,
    /// Median of all rounds, in milliseconds.
    pub median_ms: f64,
    /// Longest round, in milliseconds.
    pub longest_ms: f64,
    /// Number of rounds.
    pub rounds: usize,
}

/// The last grant of the client.
#[derive(Debug, Clone, Copy)]
struct LastGrant {
    requested_at: Instant,
    granted_at: Instant,
}

/// A client that acquires and releases a lock in a loop on a separate thread, until it is dropped.
struct Client {
    last: Arc<Mutex<LastGrant>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Kills the leader `rounds` times. `None` for a target without a successor.
pub(super) fn measure(setup: &mut Setup, rounds: usize) -> Result<Option<FailOver>, CompareError> {
    let target = setup.target;
    if !matches!(target, Target::Cell3 | Target::Etcd | Target::Zookeeper) {
        return Ok(None);
    }
    let client = Client::start(setup.url.clone())?;
    let Some(servers) = &mut setup.servers else { return Ok(None) };
    let mut times = Vec::new();
    for _ in 0..rounds {
        thread::sleep(SETTLE);
        let killed_at = kill_leader(servers)?;
        let ended_at = Instant::now();
        times.push(client.grant_after(ended_at)? - killed_at);
        servers.restart()?;
    }
    times.sort();
    let ms = |time: &Duration| time.as_secs_f64() * 1_000.0;
    let (median, longest) = (times.get(times.len() / 2), times.last());
    Ok(median.zip(longest).map(|(median, longest)| FailOver {
        engine: target.name(),
        median_ms: ms(median),
        longest_ms: ms(longest),
        rounds,
    }))
}

/// Kills the leader, once there is one.
fn kill_leader(servers: &mut Servers) -> Result<Instant, CompareError> {
    let began = Instant::now();
    while began.elapsed() < GRANT_WITHIN {
        if let Some(killed_at) = servers.kill_leader() {
            return Ok(killed_at);
        }
        thread::sleep(RETRY_AFTER);
    }
    Err(CompareError::protocol("there is no leader"))
}

impl Client {
    fn start(url: String) -> Result<Client, CompareError> {
        let now = Instant::now();
        let last = Arc::new(Mutex::new(LastGrant { requested_at: now, granted_at: now }));
        let (stop, stopped) = oneshot::channel();
        let (runtime, of_thread) = (runtime()?, last.clone());
        let keeper = runtime.block_on(Keeper::connect_unfenced(&url))?;
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = acquire_in_a_loop(&keeper, &of_thread) => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Client { last, stop: Some(stop), thread: Some(thread) })
    }

    /// Time of the first grant that was requested after `moment`. An earlier request may have been granted by the killed
    /// leader.
    fn grant_after(&self, moment: Instant) -> Result<Instant, CompareError> {
        loop {
            let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.requested_at > moment {
                return Ok(last.granted_at);
            }
            if moment.elapsed() > GRANT_WITHIN {
                let why = format!("no grant for {GRANT_WITHIN:?} after the leader was killed");
                return Err(CompareError::Protocol(why));
            }
            thread::sleep(POLL);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn acquire_in_a_loop(keeper: &Keeper<Unfenced>, last: &Mutex<LastGrant>) {
    loop {
        let requested_at = Instant::now();
        match keeper.lock("bench/fail-over").acquire().await {
            Ok(guard) => {
                let grant = LastGrant { requested_at, granted_at: Instant::now() };
                *last.lock().unwrap_or_else(PoisonError::into_inner) = grant;
                // A release that fails is repeated in the background.
                let _ = guard.release().await;
            }
            Err(_) => tokio::time::sleep(RETRY_AFTER).await,
        }
    }
}
