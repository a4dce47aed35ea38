//! A client process: takes the lock through the library (or by a naive recipe, as a control), reads and writes the
//! resource, and says on stdout what happens to it, a line of JSON for each thing. It does what it is told on stdin.

mod access;
mod crowd;
mod reader;
mod step;

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use tokio::sync::mpsc;

pub(crate) use self::crowd::Crowd;
pub(crate) use self::step::{Step, Updates};

use self::access::{Access, Held};
use self::reader::ResourceLink;
use super::clock::now_ns;
use super::event::{Event, What};
use super::random::Random;

/// How often it looks at its guard.
const LOOK: Duration = Duration::from_millis(10);

/// What a client process is started with.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Where the locks are kept; `naive://host:port` is the plain recipe on a Redis, `advisory://host:port` the plain
    /// recipe on a PostgreSQL or its pooler.
    pub url: String,
    /// Its name on the timeline.
    pub name: String,
    /// The lock, and the register of the resource that it protects.
    pub lock: String,
    /// The time to live.
    pub ttl: Duration,
    /// Where the resource is.
    pub resource: String,
}

/// Plays the client until stdin ends.
///
/// # Errors
///
/// In words, if it cannot go on.
pub async fn play(options: ClientOptions) -> Result<(), String> {
    let mut client = match Client::connect(options.clone()).await {
        Ok(client) => client,
        Err(why) => return say(&options, What::Failed { why }),
    };
    client.say(What::Ready)?;
    let mut steps = read_steps();
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            step = steps.recv() => match step {
                Some(step) => {
                    if let Err(why) = client.take(step).await {
                        client.say(What::Failed { why })?;
                    }
                }
                None => return Ok(()),
            },
            _ = look.tick() => client.look()?,
        }
    }
}

/// What we are told, from a thread of its own: stdin can only be read by blocking.
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

fn say(options: &ClientOptions, what: What) -> Result<(), String> {
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
    /// Up to when the guard was sure, when we last looked; `None` when it was seen to be lost.
    sure_until_ns: Option<u64>,
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
            sure_until_ns: None,
            read: BTreeSet::new(),
            count: 0,
        })
    }

    fn say(&self, what: What) -> Result<(), String> {
        say(&self.options, what)
    }

    /// Looks at the guard, as a holder does that minds its deadline.
    fn look(&mut self) -> Result<(), String> {
        let (Some(held), Some(sure)) = (&self.held, self.sure_until_ns) else { return Ok(()) };
        match held.sure_for() {
            Some(left) if left.is_zero() => {
                self.sure_until_ns = None;
                let why = held.why_lost();
                // Nobody was sure for longer than until now.
                self.say(What::Lost { until_ns: sure.min(now_ns()), why })
            }
            Some(left) => {
                self.sure_until_ns = Some(now_ns() + left.as_nanos() as u64);
                Ok(())
            }
            // A naive recipe has no deadline: it is sure until it gives the lock back.
            None => Ok(()),
        }
    }

    async fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Acquire { wait_ms } => {
                self.say(What::Asks)?;
                self.acquire(Duration::from_millis(wait_ms)).await
            }
            Step::Read => self.read().await,
            Step::Write => self.write().await,
            Step::Release => self.release().await,
            Step::Updates(updates) => self.update_for(&updates).await,
            Step::Crowd(crowd) => crowd::run(&self.options, &crowd, |what| self.say(what)).await,
        }
    }

    async fn acquire(&mut self, wait: Duration) -> Result<(), String> {
        match self.access.acquire(&self.options.lock, wait).await {
            Ok(held) => {
                let left = held.sure_for().unwrap_or_default();
                self.sure_until_ns = Some(now_ns() + left.as_nanos() as u64);
                let token = held.token();
                self.held = Some(held);
                self.say(What::Granted { token })
            }
            Err(why) => self.say(What::NotGranted { why }),
        }
    }

    async fn read(&mut self) -> Result<(), String> {
        let token = self.held.as_ref().and_then(Held::token);
        match self.resource.read(&self.options.lock, token).await? {
            Ok(updates) => {
                self.read = updates;
                self.say(What::Read { updates: self.read.len() as u64 })
            }
            Err(why) => self.say(What::Refused { act: "read".to_owned(), why }),
        }
    }

    /// It does not look at its guard before: a process that is stopped just before its write cannot.
    async fn write(&mut self) -> Result<(), String> {
        let token = self.held.as_ref().and_then(Held::token);
        self.count += 1;
        let added = format!("{}.{}", self.options.name, self.count);
        let mut updates = self.read.clone();
        updates.insert(added.clone());
        match self.resource.write(&self.options.lock, token, updates, added).await? {
            Ok(wiped) => self.say(What::Wrote { wiped }),
            Err(why) => self.say(What::Refused { act: "write".to_owned(), why }),
        }
    }

    async fn release(&mut self) -> Result<(), String> {
        let Some(held) = self.held.take() else {
            return self.say(What::NotReleased { until_ns: now_ns(), why: "it holds nothing".to_owned() });
        };
        let until_ns = match (held.sure_for(), self.sure_until_ns) {
            (Some(_), sure) => sure.unwrap_or_default().min(now_ns()),
            (None, _) => now_ns(),
        };
        self.sure_until_ns = None;
        match self.access.release(&self.options.lock, held).await {
            Ok(()) => self.say(What::Released { until_ns }),
            Err(why) => self.say(What::NotReleased { until_ns, why }),
        }
    }

    /// Adds to the set again and again, under the lock.
    async fn update_for(&mut self, updates: &Updates) -> Result<(), String> {
        let began = now_ns();
        let mut random = Random::new(updates.seed);
        let mut rounds = 0;
        while now_ns() < began + updates.for_ms * 1_000_000 {
            self.say(What::Asks)?;
            self.acquire(Duration::from_millis(updates.for_ms)).await?;
            if self.held.is_none() {
                // An engine that does not answer at the moment: not at once again.
                tokio::time::sleep(LOOK).await;
                continue;
            }
            rounds += 1;
            self.read().await?;
            self.work(updates.inside_ms / 2 + random.below(updates.inside_ms)).await?;
            self.write().await?;
            self.release().await?;
            tokio::time::sleep(Duration::from_millis(random.below(2 * updates.outside_ms))).await;
        }
        self.say(What::Worked { rounds, took_ns: now_ns() - began })
    }

    /// Works, and looks at its guard meanwhile, but does not heed it: that is the case to be examined.
    async fn work(&mut self, ms: u64) -> Result<(), String> {
        let until = now_ns() + ms * 1_000_000;
        while now_ns() < until {
            tokio::time::sleep(LOOK).await;
            self.look()?;
        }
        Ok(())
    }
}
