//! `lockkeeper run NAME -- COMMAND`: a command that runs only while a lock is held.
//!
//! ```text
//! waiting    for the lock; a signal gives up
//! command    started in a process group of its own, through crate::child
//! supervise  until it ends, or has to be ended because the lease does
//! lease      when TERM and KILL are due, by the guard's deadline
//! ```

mod command;
mod lease;
pub(crate) mod sentinel;
mod signals;
mod slot;
mod supervise;
pub(crate) mod terminal;
mod waiting;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use lockkeeper::{Error, Fenced, Fencing, Guard, Keeper, Lock, Token, Unfenced};

use self::command::Started;
use self::lease::Margins;
use self::sentinel::Sentinel;
use self::signals::Signals;
use self::slot::Slot;
use self::supervise::{End, Supervisor};
use crate::client::{self, Client, Output};
use crate::duration;
use crate::failure::{Failure, LOST};

/// How long the goodbye to the cell may take.
const GOODBYE: Duration = Duration::from_secs(3);
/// The same when the cell is not likely to answer.
const SHORT_GOODBYE: Duration = Duration::from_millis(500);
/// The longest owner that a cell takes.
const OWNER_BYTES_MAX: usize = 512;

const AFTER_HELP: &str = "\
Examples:
  lockkeeper run nightly-report -- ./report.sh
  lockkeeper run deploy --no-wait -- ./deploy.sh || echo \"busy, or it failed\"
  lockkeeper run encode --capacity 4 -- ffmpeg ...     at most four, on all machines
  lockkeeper run cleanup --once-per 1h -- ./cleanup.sh      from the cron of every host
  lockkeeper run db -- sh -c 'psql -v token=$LOCKKEEPER_TOKEN -f update.sql'

The command finds in its environment:
  LOCKKEEPER_LOCK       the lock's name
  LOCKKEEPER_TOKEN      the fencing token: greater than that of every earlier
                        holder. Hand it to the resource with every write, and let
                        the resource refuse a lower one than it has seen
  LOCKKEEPER_SEQUENCER  token, mode and name in one word, which any service can
                        have checked by the cell
                        (both are missing with an engine that cannot fence:
                        redlock://, and redis:// without
                        --accept-volatile-tokens)
  LOCKKEEPER_ENGINE     the engine

Exit codes:
  the command's own, or 128 + n if it died of signal n
   64  wrong usage
   69  no engine answers
   70  the lease was lost and the command was ended, whatever its own code was
   75  the lock is busy (--no-wait)
  124  the lock did not become free in time (--wait)
  126  the command cannot be executed
  127  there is no such command
  128 + n  signal n ended the wait for the lock

What happens when:
  The lease cannot be renewed: the command's whole process group gets TERM, so
    early that KILL after --kill-after still comes before the lease can pass on.
  The lock is taken away by force: TERM at once, KILL after --kill-after. The
    token is stale from the first moment.
  The command ends: processes that it left behind in its group get TERM, then
    KILL after --kill-after, and only then is the lock released. --keep-group
    leaves them alone. A process that made a session of its own (setsid) is
    never touched.
  A signal comes (TERM, INT, HUP, QUIT, USR1, USR2, ALRM, CONT, WINCH): it is
    passed on to the group. Those ignored at the start (nohup) stay ignored.
  Ctrl-Z: a stopped command would lose its lease, so it is continued at once.
  `run` itself gets KILL: the kernel kills the command (on Linux, and not if it
    is set-user-id), and a second process of ours kills the rest of its group.
    Nobody renews the lease, so it ends after --ttl; if both of us are killed at
    once, the token keeps what is left out of whatever checks it.
  `run` is process 1 of a container: it reaps orphans.

Once per slot (--once-per 1h): time is cut into slots of that length by the engine's
  calendar. The first one who gets the lock runs the command; when it has succeeded,
  the slot is recorded under its token, and all who come later in the slot are skipped
  with exit code 0. If it fails or dies, the next one who comes or waits takes over.
  The record only moves forward: no slot is run twice, whatever the clocks of hosts do.
  Needs an engine that keeps values.

With --output json, errors on stderr are JSON; stdout is the command's alone.";

/// Run a command while holding a lock
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Run {
    /// The lock
    name: String,
    /// How long the lock outlives us if this machine dies. Renewed every third of it
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,
    /// Wait for the lock at most this long [default: as long as it takes]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: exit with 75 if the lock is busy
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Together with others who take it as shared
    #[arg(long)]
    shared: bool,
    /// How many permits of a counted lock to take
    #[arg(long, value_name = "N", requires = "capacity", conflicts_with = "shared")]
    permits: Option<u32>,
    /// Make it a counted lock with so many permits; all who use it must name the same number
    #[arg(long, value_name = "N", conflicts_with = "shared")]
    capacity: Option<u32>,
    /// Keep the lock closed for so long if we are lost without releasing it: for resources that check no token. At most 60s
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration::parse)]
    lock_delay: Duration,
    /// Time between TERM and KILL, at most half the TTL [default: a quarter of the TTL, at most 5s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) kill_after: Option<Duration>,
    /// Leave processes alone that the command leaves behind in its process group
    #[arg(long)]
    keep_group: bool,
    /// Who we are, for those who ask who holds the lock [default: host/process/command]
    #[arg(long, value_name = "TEXT")]
    pub(crate) owner: Option<String>,
    /// Say on stderr what it waits for, also if that is no terminal
    #[arg(long, short)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    client: Client,
    /// Run it once in each slot of this length, on one of all hosts that start it
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with_all = ["shared", "capacity"])]
    once_per: Option<Duration>,
    /// What to announce: set by `elect` alone.
    #[arg(skip)]
    pub(crate) value: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    /// A plain one.
    pub(crate) fn new(name: String, client: Client, command: Vec<OsString>) -> Run {
        Run {
            name,
            ttl: Duration::from_secs(10),
            wait: None,
            no_wait: false,
            shared: false,
            permits: None,
            capacity: None,
            lock_delay: Duration::ZERO,
            kill_after: None,
            keep_group: false,
            owner: None,
            verbose: false,
            client,
            once_per: None,
            value: None,
            command,
        }
    }

    pub(crate) fn output(&self) -> Output {
        self.client.output
    }

    pub(crate) fn run(self) -> Result<u8, Failure> {
        let margins = Margins::new(self.ttl, self.kill_after).map_err(Failure::usage)?;
        terminal::never_stop_for_output();
        client::block_on(self.run_under_lock(margins))
    }

    async fn run_under_lock(self, margins: Margins) -> Result<u8, Failure> {
        // Before anything else: from here on no signal is missed.
        let mut signals = Signals::listen()
            .map_err(|error| Failure::other(format!("signals cannot be received: {error}")))?;
        let builder = self.client.builder().owner(self.owner.clone().unwrap_or_else(|| self.default_owner()));
        let keeper = tokio::select! {
            keeper = builder.connect_unfenced(&self.client.engine) => keeper?,
            number = signals.next_fatal() => return Ok(signals::exit_code(number)),
        };
        // An engine that cannot fence runs commands all the same: they get no token.
        match keeper.fenced() {
            Ok(fenced) => self.run_with(margins, signals, fenced).await,
            Err(_) => self.run_with(margins, signals, keeper).await,
        }
    }

    async fn run_with<F: Fencing>(
        self,
        margins: Margins,
        mut signals: Signals,
        keeper: Keeper<F>,
    ) -> Result<u8, Failure>
    where
        Guard<F>: Tokens,
    {
        let lock = self.lock(&keeper);
        let show = self.client.output == Output::Table;
        let guard = tokio::select! {
            guard = waiting::acquire(&keeper, &lock, &self.name, show, self.verbose) => match guard {
                Ok(guard) => guard,
                Err(error) => {
                    let failure = self.explain(&keeper, error).await;
                    goodbye(&keeper).await;
                    return Err(failure);
                }
            },
            number = signals.next_fatal() => {
                // The dropped wait leaves the queue; wait until the cell knows.
                goodbye(&keeper).await;
                return Ok(signals::exit_code(number));
            }
        };
        self.run_while_held(margins, signals, keeper, guard).await
    }

    async fn run_while_held<F: Fencing>(
        self,
        margins: Margins,
        signals: Signals,
        keeper: Keeper<F>,
        guard: Guard<F>,
    ) -> Result<u8, Failure>
    where
        Guard<F>: Tokens,
    {
        let mut environment = vec![
            ("LOCKKEEPER_LOCK", guard.lock_name().to_owned()),
            ("LOCKKEEPER_ENGINE", self.client.engine.clone()),
        ];
        environment.extend(guard.tokens());
        if let (Some(_), Some((_, epoch))) = (&self.value, guard.fence()) {
            environment.push(("LOCKKEEPER_EPOCH", epoch.0.to_string()));
        }
        let slot = match self.slot(&keeper, &guard).await {
            Ok(Turn::Now(slot)) => slot,
            Ok(Turn::Skip) => {
                let _ = guard.release().await;
                goodbye(&keeper).await;
                return Ok(0);
            }
            Err(failure) => {
                let _ = guard.release().await;
                goodbye(&keeper).await;
                return Err(failure);
            }
        };
        let json = self.client.output == Output::Json;
        let started = match Started::start(&self.command, environment, json) {
            Ok(started) => started,
            Err(failure) => {
                let _ = guard.release().await;
                goodbye(&keeper).await;
                return Err(failure);
            }
        };
        let sentinel = Sentinel::watch(started.pid);
        let supervisor = Supervisor::new(started, signals, margins, self.keep_group);
        let end = supervisor.until_end(&guard).await;
        // Of a group that did not go at KILL it stays the last hope.
        if let (Some(sentinel), false) = (sentinel, matches!(end, End::Lost { left_over: true, .. })) {
            sentinel.dismiss();
        }
        match end {
            End::ByItself { code } => {
                let recorded = match (slot, guard.fence()) {
                    (Some(slot), Some(fence)) if code == 0 => slot.done(fence).await,
                    _ => Ok(()),
                };
                let released = tokio::time::timeout(GOODBYE, guard.release()).await;
                match released {
                    Ok(Ok(())) => goodbye(&keeper).await,
                    // It was taken away, and we were not told in time.
                    Ok(Err(Error::NotHeld { .. } | Error::SessionLost)) => {
                        return Err(self.lost("it was taken away before the command ended"));
                    }
                    // The command's work was done under the lock; that the cell does not answer now changes nothing.
                    Ok(Err(_)) | Err(_) => {
                        let ttl = duration::words(self.ttl);
                        Failure::new("unknown", 0, format!(
                            "the command has ended, but the cell does not answer: \"{}\" is free in {ttl} at the latest",
                            self.name
                        ))
                        .print(self.client.output);
                    }
                }
                recorded.map(|()| code)
            }
            End::Lost { why, left_over } => {
                let end = if left_over {
                    // Whatever the cell still holds for us must not pass on before its time.
                    std::mem::forget(guard);
                    "the command was sent KILL but has not ended yet (it may hang in the kernel)"
                } else {
                    drop(guard);
                    let _ = tokio::time::timeout(SHORT_GOODBYE, keeper.close()).await;
                    "the command was ended"
                };
                Err(self.lost(&format!("{why}; {end}")))
            }
        }
    }

    /// Whether this run is wanted, if it is for a slot.
    async fn slot<'a, F: Fencing>(
        &self,
        keeper: &'a Keeper<F>,
        guard: &Guard<F>,
    ) -> Result<Turn<'a, F>, Failure>
    where
        Guard<F>: Tokens,
    {
        let Some(period) = self.once_per else { return Ok(Turn::Now(None)) };
        let fence = guard.fence().filter(|_| keeper.capabilities().values).ok_or_else(|| {
            Failure::new(
                "unsupported",
                crate::failure::USAGE,
                format!("the engine {} keeps no values: --once-per needs a cell", keeper.engine()),
            )
        })?;
        let owner = self.owner.clone().unwrap_or_else(|| self.default_owner());
        let slot = Slot::take(keeper, &self.name, period, owner, fence).await?;
        Ok(slot.map_or(Turn::Skip, |slot| Turn::Now(Some(slot))))
    }

    fn lost(&self, why: &str) -> Failure {
        Failure::new("lost", LOST, format!("\"{}\" was lost: {why}", self.name))
    }

    fn lock<F: Fencing>(&self, keeper: &Keeper<F>) -> Lock<F> {
        let mut lock = keeper.lock(self.name.as_str()).ttl(self.ttl).lock_delay(self.lock_delay);
        if self.no_wait {
            lock = lock.no_wait();
        }
        if let Some(wait) = self.wait {
            lock = lock.wait(wait);
        }
        if self.shared {
            lock = lock.shared();
        }
        if let Some(value) = &self.value {
            lock = lock.announce(value.as_str());
        }
        if let Some(permits) = self.permits {
            lock = lock.permits(permits);
        }
        if let Some(capacity) = self.capacity {
            lock = lock.capacity(capacity);
        }
        lock
    }

    /// The error in the words of the command line, with the holder if that can be had quickly.
    async fn explain<F: Fencing>(&self, keeper: &Keeper<F>, error: Error) -> Failure {
        let next = match &error {
            Error::Contended { .. } => "try again later, or wait for it with --wait 30s",
            Error::Timeout { .. } => "try again later, or wait longer with --wait",
            _ => return error.into(),
        };
        let held = match tokio::time::timeout(Duration::from_millis(500), keeper.who(&self.name)).await {
            Ok(Ok(lock)) => waiting::held_by(&lock),
            _ => String::new(),
        };
        let what = match self.wait {
            Some(wait) if !self.no_wait && !wait.is_zero() => {
                format!("\"{}\" did not become free within {}{held}", self.name, duration::words(wait))
            }
            _ => format!("\"{}\" is busy{held}", self.name),
        };
        Failure { message: format!("{what}: {next}"), ..error.into() }
    }

    /// Host, process, command and our version, such as `web-3/4711/report.sh/lockkeeper-0.1.0`.
    fn default_owner(&self) -> String {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let command = Path::new(&self.command[0]).file_name().unwrap_or(&self.command[0]).to_string_lossy();
        let version = env!("CARGO_PKG_VERSION");
        let mut owner: String = format!("{host}/{}/{command}/lockkeeper-{version}", std::process::id());
        owner.retain(|c| !c.is_control());
        let mut end = owner.len().min(OWNER_BYTES_MAX);
        while !owner.is_char_boundary(end) {
            end -= 1;
        }
        owner.truncate(end);
        owner
    }
}

/// Whether the command is to be run now.
enum Turn<'a, F: Fencing> {
    /// Yes, and for this slot, if it is for one.
    Now(Option<Slot<'a, F>>),
    /// No: it was run already.
    Skip,
}

/// What the command is told about its token.
trait Tokens {
    fn tokens(&self) -> Vec<(&'static str, String)>;

    /// The condition of a write, if the engine can fence.
    fn fence(&self) -> Option<(String, Token)>;
}

impl Tokens for Guard<Fenced> {
    fn tokens(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LOCKKEEPER_TOKEN", self.token().0.to_string()),
            ("LOCKKEEPER_SEQUENCER", self.sequencer().to_owned()),
        ]
    }

    fn fence(&self) -> Option<(String, Token)> {
        Some((self.lock_name().to_owned(), self.token()))
    }
}

impl Tokens for Guard<Unfenced> {
    fn tokens(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn fence(&self) -> Option<(String, Token)> {
        None
    }
}

/// Closes our session, so that the cell need not wait for its end.
async fn goodbye<F: Fencing>(keeper: &Keeper<F>) {
    let _ = tokio::time::timeout(GOODBYE, keeper.close()).await;
}
