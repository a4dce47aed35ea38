//! A client on a simulated machine: the real library, used by workers that honour their deadlines.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::{Error, Guard, Keeper, Token};

use super::faults::Emphasis;
use super::machine::{true_after, true_now};
use super::random::Random;
use super::recorder::Recorder;
use super::waiter;
use crate::checkers::history::{GrantedRequest, Hold, Loss, Queue, Read, Release, Write};

/// Few, so that workers contend.
pub(super) const LOCKS: [&str; 3] = ["red", "green", "blue"];

/// Pause before a retry.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Interval at which a holder checks its guard.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// State that all workers of a run share.
#[derive(Clone)]
pub(super) struct Work {
    pub(super) url: String,
    pub(super) ttl: Duration,
    pub(super) recorder: Recorder,
    /// End of the workload in true time: no new operations start afterwards.
    pub(super) until: Duration,
    /// Number of active workers.
    pub(super) busy: Arc<AtomicU32>,
    /// Number of requests so far, for unique names.
    pub(super) requests: Arc<AtomicU64>,
    /// True time at which a session lapses that is deliberately not renewed in time.
    pub(super) next_lapse: Arc<Mutex<Option<Duration>>>,
    pub(super) emphasis: Emphasis,
    /// Whether the plain clients have a quota.
    pub(super) has_quota: bool,
}

/// Counts an active worker until dropped, even if it is killed.
pub(super) struct Busy(Arc<AtomicU32>);

impl Busy {
    pub(super) fn new(busy: &Arc<AtomicU32>) -> Busy {
        busy.fetch_add(1, Ordering::Relaxed);
        Busy(busy.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs a client process whose workers share a keeper.
pub(super) async fn run(client: u32, workers: u32, work: Work, mut random: Random) {
    let busy = Busy::new(&work.busy);
    let Some(keeper) = connect(client, &work).await else { return };
    let keeper = Arc::new(Mutex::new(keeper));
    let mut tasks = Vec::new();
    // A quiet client, like an elected leader without other requests.
    let quiet = random.once_in(3) || work.emphasis.is_quiet();
    for number in 0..if quiet { 1 } else { workers } {
        let worker = Worker {
            number: client * 10 + number,
            client,
            quiet,
            work: work.clone(),
            random: random.fork(),
            keeper: keeper.clone(),
        };
        tasks.push(tokio::spawn(worker.run()));
    }
    for task in tasks {
        if let Err(error) = task.await
            && error.is_panic()
        {
            work.recorder.record_failure(true_now(), format!("client {client} panicked: {error}"));
        }
    }
    // Keeps the session alive, so that anything a worker leaves behind remains visible.
    drop(busy);
    std::future::pending().await
}

async fn connect(client: u32, work: &Work) -> Option<Keeper> {
    while true_now() < work.until {
        let owner = format!("client-{client}");
        match Keeper::builder().owner(owner).ttl(work.ttl).connect(&work.url).await {
            Ok(keeper) => return Some(keeper),
            Err(_) => work.recorder.count("connects failed"),
        }
        // Without a pause, immediate refusals would loop without advancing the simulated time.
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    None
}

struct Worker {
    number: u32,
    client: u32,
    /// It holds for a long time without other requests, so that it stays connected to its node.
    quiet: bool,
    work: Work,
    random: Random,
    keeper: Arc<Mutex<Keeper>>,
}

impl Worker {
    async fn run(mut self) {
        while true_now() < self.work.until {
            let lock = match self.work.emphasis {
                Emphasis::FarHolder => waiter::LOCK,
                _ => *self.random.one_of(&LOCKS),
            };
            let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match self.random.below(24) {
                _ if self.quiet => self.acquire(&keeper, lock).await,
                0 | 1 => self.read(&keeper, lock).await,
                2..=4 => self.check(&keeper, lock).await,
                // Replaces the keeper. Operations on the old keeper continue until they complete.
                5 if self.number.is_multiple_of(10) => {
                    drop(keeper);
                    let Some(new) = connect(self.client, &self.work).await else { return };
                    *self.keeper.lock().unwrap_or_else(PoisonError::into_inner) = new;
                    self.work.recorder.count("keepers replaced");
                }
                _ => self.acquire(&keeper, lock).await,
            }
            tokio::time::sleep(self.random.between_ms(0, 30)).await;
        }
    }

    async fn read(&mut self, keeper: &Keeper, key: &str) {
        let invoked = true_now();
        let read = keeper.value(key).get().await;
        let (value, version) = match read {
            Ok(Some(value)) => (String::from_utf8_lossy(&value.bytes).into_owned(), value.version),
            Ok(None) => (String::new(), 0),
            Err(error) => return self.work.recorder.count(&format!("reads {}", error.code())),
        };
        let returned = true_now();
        self.work
            .recorder
            .record_event(returned, &format!("worker {} reads {key} at version {version}", self.number));
        self.work.recorder.update(|history| {
            history.reads.push(Read { key: key.to_owned(), value, version, invoked, returned });
        });
    }

    async fn check(&mut self, keeper: &Keeper, lock: &str) {
        match keeper.who(lock).await {
            Ok(state) => {
                let requests = state.queue.into_iter().map(|waiter| waiter.value).collect();
                let queue = Queue { lock: lock.to_owned(), seen: true_now(), requests };
                self.work.recorder.update(|history| history.queues.push(queue));
            }
            Err(error) => self.work.recorder.count(&format!("queue reads {}", error.code())),
        }
    }

    async fn acquire(&mut self, keeper: &Keeper, lock: &str) {
        let request = format!("r{}", self.work.requests.fetch_add(1, Ordering::Relaxed));
        let wanted = keeper.lock(lock).announce(request.clone());
        let wanted = match self.random.below(4) {
            0 => wanted.no_wait(),
            _ => wanted.wait(self.random.between_ms(200, 4_000)),
        };
        let session = keeper.session_ids().await.ok();
        let invoked = true_now();
        // Some acquires are cancelled: the future is dropped at an arbitrary await.
        let limit = match self.random.below(6) {
            0 => self.random.between_ms(1, 1_000),
            _ => Duration::from_secs(3_600),
        };
        match tokio::time::timeout(limit, wanted.acquire()).await {
            Ok(Ok(guard)) => {
                let token = guard.token().0;
                let from = self.work.recorder.grant(self.number, lock, token, invoked);
                // A request whose session was lost continues in a new session at the end of the queue.
                if keeper.session_ids().await.ok() == session {
                    self.work
                        .recorder
                        .update(|history| history.granted_requests.push(GrantedRequest { request, token }));
                }
                self.hold(keeper, guard, from).await;
            }
            Ok(Err(error)) => {
                self.work.recorder.record_event(
                    true_now(),
                    &format!("{request} of {} ends: {}", self.number, error.code()),
                );
                self.work.recorder.count(&format!("acquires {}", error.code()));
            }
            Err(_) => {
                self.work
                    .recorder
                    .record_event(true_now(), &format!("{request} of {} is cancelled", self.number));
                self.work.recorder.count("acquires cancelled");
            }
        }
    }

    /// Holds the lock for a while and writes under its token. Some also write after the hold.
    async fn hold(&mut self, keeper: &Keeper, guard: Guard, from: Duration) {
        let (lock, token) = (guard.lock_name().to_owned(), guard.token());
        self.work_under(keeper, guard, &lock, token, from).await;
        if self.random.once_in(4) {
            tokio::time::sleep(self.random.between_ms(0, 500)).await;
            // A refusal is not a loss: the lock was released, or already known to be lost.
            if let Err(error) = self.write(keeper, &lock, token).await {
                self.work.recorder.count(&format!("late writes {}", error.code()));
            }
        }
    }

    async fn work_under(&mut self, keeper: &Keeper, guard: Guard, lock: &str, token: Token, from: Duration) {
        let mut hold = Holding::new(self, lock, token.0, from);
        let rounds = if self.quiet { 1 } else { self.random.below(6) };
        for _ in 0..rounds {
            if !hold.check(&guard) {
                break;
            }
            if !self.quiet && self.random.once_in(2) {
                let mut write = pin!(self.write(keeper, lock, token));
                let written = loop {
                    tokio::select! {
                        biased;
                        written = &mut write => break written,
                        // A write may wait long for a leader, so the guard's promise is recorded meanwhile.
                        () = tokio::time::sleep(CHECK_INTERVAL) => drop(hold.check(&guard)),
                    }
                };
                if let Err(error) = written {
                    self.work.recorder.count(&format!("writes {}", error.code()));
                    hold.lost(&error);
                }
            } else {
                // Some holds last longer than an election or the TTL.
                let longest = match self.quiet {
                    true => 8_000,
                    false if self.random.once_in(8) => 3_000,
                    false => 30,
                };
                let until = true_now() + self.random.between_ms(0, longest);
                while true_now() < until && hold.check(&guard) {
                    tokio::time::sleep(CHECK_INTERVAL).await;
                }
            }
        }
        hold.end(&guard);
        let invoked = true_now();
        if self.random.once_in(4) {
            drop(guard);
            return;
        }
        let released = guard.release().await;
        let returned = true_now();
        match released {
            Ok(()) => {
                self.work
                    .recorder
                    .record_event(returned, &format!("worker {} released {lock} ({})", self.number, token.0));
                let release = Release { lock: lock.to_owned(), token: token.0, invoked, returned };
                self.work.recorder.update(|history| history.releases.push(release));
            }
            Err(error) => {
                self.work.recorder.count(&format!("releases {}", error.code()));
                hold.lost(&error);
            }
        }
    }

    async fn write(&self, keeper: &Keeper, lock: &str, token: Token) -> Result<(), Error> {
        let invoked = true_now();
        let value = format!("v{}", self.work.requests.fetch_add(1, Ordering::Relaxed));
        // Recorded before it is sent: the write may happen even if the process is killed.
        let write = Write {
            key: lock.to_owned(),
            value,
            token: token.0,
            version: None,
            invoked,
            returned: Duration::MAX,
        };
        let (place, value) = self.work.recorder.update(|history| {
            history.writes.push(write.clone());
            (history.writes.len() - 1, write.value)
        });
        let put = keeper.value(lock).fence_with(lock, token).put(value.clone().into_bytes()).await;
        let returned = true_now();
        match put {
            Ok(version) => {
                self.work
                    .recorder
                    .record_event(returned, &format!("worker {} wrote {value} as {version}", self.number));
                self.work.recorder.update(|history| {
                    let write = &mut history.writes[place];
                    (write.version, write.returned) = (Some(version), returned);
                });
                Ok(())
            }
            Err(Error::Unknown(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A hold in progress. It is recorded from its start, in case its process is killed.
struct Holding {
    recorder: Recorder,
    client: u32,
    lock: String,
    token: u64,
    place: usize,
    /// Last known end of the lease in true time.
    promised: Duration,
}

impl Holding {
    fn new(worker: &Worker, lock: &str, token: u64, from: Duration) -> Holding {
        let recorder = worker.work.recorder.clone();
        let client = worker.number;
        let hold = Hold { client, lock: lock.to_owned(), token, from, until: from };
        let place = recorder.update(|history| {
            history.holds.push(hold);
            history.holds.len() - 1
        });
        Holding { recorder, client, lock: lock.to_owned(), token, place, promised: from }
    }

    /// Whether it is still held. Records until when.
    fn check(&mut self, guard: &Guard) -> bool {
        let remaining = guard.remaining();
        if remaining.is_zero() {
            return false;
        }
        self.promised = true_after(remaining);
        self.recorder.update(|history| history.holds[self.place].until = self.promised);
        true
    }

    /// Ends the hold before the release.
    fn end(&mut self, guard: &Guard) {
        if self.check(guard) {
            self.recorder.update(|history| history.holds[self.place].until = true_now());
        } else {
            self.recorder.count("holds ended by the deadline");
        }
    }

    /// Records a loss if the error reports one.
    fn lost(&self, error: &Error) {
        if !matches!(error, Error::NotHeld { .. } | Error::SessionLost | Error::StaleToken { .. }) {
            return;
        }
        let loss = Loss {
            client: self.client,
            lock: self.lock.clone(),
            token: self.token,
            told_at: true_now(),
            promised: self.promised,
            why: error.code().to_owned(),
        };
        self.recorder.update(|history| history.losses.push(loss));
    }
}
