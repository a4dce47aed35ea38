//! The client process: acquires the lock through the library (or by a naive recipe, as a control), and reads and writes the
//! resource. It reads steps from stdin and prints events on stdout, one line of JSON each.

mod access;
mod group;
mod reader;
mod step;

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use tokio::sync::mpsc;

pub(crate) use self::group::ClientGroup;
pub(crate) use self::step::{Step, Updates};

use self::access::{Access, Held};
use self::reader::ResourceLink;
use super::clock::now_ns;
use super::event::{Event, EventKind};
use super::random::Random;

/// Interval between two checks of the guard.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// Settings of a client process.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// The engine. `naive://host:port` is the naive recipe on Redis, `advisory://host:port` the naive recipe on PostgreSQL
    /// or its pooler.
    pub url: String,
    /// Its name on the timeline.
    pub name: String,
    /// The lock, and the register of the resource that it protects.
    pub lock: String,
    /// The TTL.
    pub ttl: Duration,
    /// Address of the resource.
    pub resource: String,
}

/// Runs the client until stdin ends.
///
/// # Errors
///
/// If it cannot write its events.
pub async fn run_client(options: ClientOptions) -> Result<(), String> {
    let mut client = match Client::connect(options.clone()).await {
        Ok(client) => client,
        Err(why) => return print(&options, EventKind::Failed { why }),
    };
    client.print(EventKind::Ready)?;
    let mut steps = read_steps();
    let mut check = tokio::time::interval(CHECK_EVERY);
    loop {
        tokio::select! {
            step = steps.recv() => match step {
                Some(step) => {
                    if let Err(why) = client.run_step(step).await {
                        client.print(EventKind::Failed { why })?;
                    }
                }
                None => return Ok(()),
            },
            _ = check.tick() => client.check()?,
        }
    }
}

/// Reads steps on a separate thread, because reading stdin blocks.
fn read_steps() -> mpsc::Receiver<Step> {
    let (sender, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let Ok(step) = serde_json::from_str(&line) else { return };
            if sender.blocking_send(step).is_err() {
                return;
            }
        }
    });
    receiver
}

fn print(options: &ClientOptions, what: EventKind) -> Result<(), String> {
    let event = Event { at_ns: now_ns(), who: options.name.clone(), lock: options.lock.clone(), what };
    let line = serde_json::to_string(&event).map_err(|error| error.to_string())?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(|error| error.to_string())
}

struct Client {
    options: ClientOptions,
    access: Access,
    resource: ResourceLink,
    held: Option<Held>,
    /// Until when the lock was certainly held at the last check; `None` after it was lost.
    held_until_ns: Option<u64>,
    read: BTreeSet<String>,
    count: u64,
}

impl Client {
    async fn connect(options: ClientOptions) -> Result<Client, String> {
        let access = Access::open(&options.url, &options.name, options.ttl).await?;
        let resource = ResourceLink::open(&options.resource).await?;
        Ok(Client {
            options,
            access,
            resource,
            held: None,
            held_until_ns: None,
            read: BTreeSet::new(),
            count: 0,
        })
    }

    fn print(&self, what: EventKind) -> Result<(), String> {
        print(&self.options, what)
    }

    /// Checks the guard, like a holder that respects its deadline.
    fn check(&mut self) -> Result<(), String> {
        let (Some(held), Some(held_until)) = (&self.held, self.held_until_ns) else { return Ok(()) };
        match held.remaining() {
            Some(left) if left.is_zero() => {
                self.held_until_ns = None;
                let why = held.why_lost();
                // The certainty ended no later than now.
                self.print(EventKind::Lost { until_ns: held_until.min(now_ns()), why })
            }
            Some(left) => {
                self.held_until_ns = Some(now_ns() + left.as_nanos() as u64);
                Ok(())
            }
            // A naive recipe has no deadline: it relies on the lock until it releases.
            None => Ok(()),
        }
    }

    async fn run_step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Acquire { wait_ms } => {
                self.print(EventKind::Asks)?;
                self.acquire(Duration::from_millis(wait_ms)).await
            }
            Step::Read => self.read().await,
            Step::Write => self.write().await,
            Step::Release => self.release().await,
            Step::Updates(updates) => self.update_for(&updates).await,
            Step::ClientGroup(group) => group::run(&self.options, &group, |what| self.print(what)).await,
        }
    }

    async fn acquire(&mut self, wait: Duration) -> Result<(), String> {
        match self.access.acquire(&self.options.lock, wait).await {
            Ok(held) => {
                let left = held.remaining().unwrap_or_default();
                self.held_until_ns = Some(now_ns() + left.as_nanos() as u64);
                let token = held.token();
                self.held = Some(held);
                self.print(EventKind::Granted { token })
            }
            Err(why) => self.print(EventKind::NotGranted { why }),
        }
    }

    async fn read(&mut self) -> Result<(), String> {
        let token = self.held.as_ref().and_then(Held::token);
        match self.resource.read(&self.options.lock, token).await? {
            Ok(updates) => {
                self.read = updates;
                self.print(EventKind::Read { updates: self.read.len() as u64 })
            }
            Err(why) => self.print(EventKind::Refused { act: "read".to_owned(), why }),
        }
    }

    /// Writes without checking the guard, like a process that is paused just before its write.
    async fn write(&mut self) -> Result<(), String> {
        let token = self.held.as_ref().and_then(Held::token);
        self.count += 1;
        let added = format!("{}.{}", self.options.name, self.count);
        let mut updates = self.read.clone();
        updates.insert(added.clone());
        match self.resource.write(&self.options.lock, token, updates, added).await? {
            Ok(wiped) => self.print(EventKind::Wrote { wiped }),
            Err(why) => self.print(EventKind::Refused { act: "write".to_owned(), why }),
        }
    }

    async fn release(&mut self) -> Result<(), String> {
        let Some(held) = self.held.take() else {
            return self
                .print(EventKind::NotReleased { until_ns: now_ns(), why: "it holds no lock".to_owned() });
        };
        let until_ns = match (held.remaining(), self.held_until_ns) {
            (Some(_), held_until) => held_until.unwrap_or_default().min(now_ns()),
            (None, _) => now_ns(),
        };
        self.held_until_ns = None;
        match self.access.release(&self.options.lock, held).await {
            Ok(()) => self.print(EventKind::Released { until_ns }),
            Err(why) => self.print(EventKind::NotReleased { until_ns, why }),
        }
    }

    /// Updates the set under the lock in a loop.
    async fn update_for(&mut self, updates: &Updates) -> Result<(), String> {
        let began = now_ns();
        let mut random = Random::new(updates.seed);
        let mut rounds = 0;
        while now_ns() < began + updates.for_ms * 1_000_000 {
            self.print(EventKind::Asks)?;
            self.acquire(Duration::from_millis(updates.for_ms)).await?;
            if self.held.is_none() {
                // Does not retry at once while the engine does not answer.
                tokio::time::sleep(CHECK_EVERY).await;
                continue;
            }
            rounds += 1;
            self.read().await?;
            self.work(updates.inside_ms / 2 + random.below(updates.inside_ms)).await?;
            self.write().await?;
            self.release().await?;
            tokio::time::sleep(Duration::from_millis(random.below(2 * updates.outside_ms))).await;
        }
        self.print(EventKind::Worked { rounds, took_ns: now_ns() - began })
    }

    /// Works and checks the guard meanwhile, but ignores the result: that is the case under test.
    async fn work(&mut self, ms: u64) -> Result<(), String> {
        let until = now_ns() + ms * 1_000_000;
        while now_ns() < until {
            tokio::time::sleep(CHECK_EVERY).await;
            self.check()?;
        }
        Ok(())
    }
}
