//! `lockkeeper run NAME -- COMMAND`: runs a command only while a lock is held.
//!
//! ```text
//! waiting    waits for the lock; a signal ends the wait
//! command    starts the command in its own process group, through crate::child
//! supervise  waits until the command ends, or ends it before the lease does
//! lease      computes when TERM and KILL are due, from the guard's deadline
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
use lockkeeper::{Code, Error, Fenced, Fencing, Guard, Keeper, Lock, Token, Unfenced};

use self::command::RunningCommand;
use self::lease::Margins;
use self::sentinel::Sentinel;
use self::signals::Signals;
use self::slot::Slot;
use self::supervise::{End, Supervisor};
use crate::client::{self, Client, Output};
use crate::duration;
use crate::failure::{Failure, LOST};

/// Time limit for closing the session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// The same after a lost lease, when the cell is unlikely to answer.
const CLOSE_TIMEOUT_LOST: Duration = Duration::from_millis(500);
/// The longest owner that a cell accepts.
const OWNER_BYTES_MAX: usize = 512;

const AFTER_HELP: &str = "\
Examples:
  lockkeeper run nightly-report -- ./report.sh
  lockkeeper run deploy --no-wait -- ./deploy.sh || echo \"busy, or failed\"
  lockkeeper run encode --capacity 4 -- ffmpeg ...     at most four on all machines
  lockkeeper run cleanup --once-per 1h -- ./cleanup.sh      from cron on every host
  lockkeeper run db -- sh -c 'psql -v token=$LOCKKEEPER_TOKEN -f update.sql'

The environment of the command contains:
  LOCKKEEPER_LOCK       name of the lock
  LOCKKEEPER_TOKEN      fencing token, greater than that of every earlier
                        holder. Pass it to the resource with every write, and let
                        the resource refuse a lower one than it has seen
  LOCKKEEPER_SEQUENCER  token, mode and name as one string, which any service
                        can check with the cell
                        (both are missing with an engine that cannot fence:
                        redlock://, and redis:// without
                        --accept-volatile-tokens)
  LOCKKEEPER_ENGINE     the engine

Exit codes:
  the command's own code, or 128 + n if signal n ended it
   64  wrong usage
   69  no engine answers
   70  the lease was lost and the command was ended
   75  the lock is busy (--no-wait)
  124  the wait timed out (--wait)
  126  the command cannot be executed
  127  the command does not exist
  128 + n  signal n ended the wait for the lock

Events:
  The lease cannot be renewed: the whole process group of the command gets TERM,
    early enough that KILL after --kill-after comes before the lease can pass on.
  The lock is force-released: TERM at once, KILL after --kill-after. The token is
    stale at once.
  The command ends: remaining processes of its group get TERM, then KILL after
    --kill-after, and then the lock is released. --keep-group leaves them alone.
    A process with its own session (setsid) is never signalled.
  A signal arrives (TERM, INT, HUP, QUIT, USR1, USR2, ALRM, CONT, WINCH): it is
    forwarded to the group. Signals ignored at the start (nohup) stay ignored.
  Ctrl-Z: a stopped command would lose its lease, so it is continued at once.
  `run` itself gets KILL: the kernel kills the command (on Linux, unless it is
    set-user-id), and a second process of `run` kills the rest of its group. The
    lease ends after --ttl. If both are killed at once, only a gate stops what is
    left of the group.
  `run` is process 1 of a container: it reaps orphans.

Once per slot (--once-per 1h): the engine's clock divides time into slots of that
  length. The first holder of the lock runs the command. When it succeeds, the slot
  is recorded under its token, and later runs in the slot are skipped with exit code 0.
  If it fails or dies, the next holder takes over. The record only moves forward: no slot
  runs twice, whatever the clocks of the hosts say. Needs an engine that keeps values.

With --output json, errors on stderr are JSON; stdout belongs to the command.";

/// Run a command while holding a lock
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Run {
    /// Name of the lock
    name: String,
    /// TTL: how long the lock stays held if this machine dies. It is renewed every third of the TTL
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,
    /// Wait at most this long for the lock [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: exit with 75 if the lock is busy
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Share the lock with other shared holders
    #[arg(long)]
    shared: bool,
    /// Permits of a counted lock to take
    #[arg(long, value_name = "N", requires = "capacity", conflicts_with = "shared")]
    permits: Option<u32>,
    /// Use a counted lock with this many permits; all users must give the same number
    #[arg(long, value_name = "N", conflicts_with = "shared")]
    capacity: Option<u32>,
    /// Keep the lock closed for this long if the session dies, for resources that check no tokens. At most 60s
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration::parse)]
    lock_delay: Duration,
    /// Time between TERM and KILL, at most half the TTL [default: a quarter of the TTL, at most 5s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) kill_after: Option<Duration>,
    /// Do not end processes that the command leaves behind in its process group
    #[arg(long)]
    keep_group: bool,
    /// Owner shown to others [default: host/process/command]
    #[arg(long, value_name = "TEXT")]
    pub(crate) owner: Option<String>,
    /// Report progress on stderr even if it is not a terminal
    #[arg(long, short)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    client: Client,
    /// Run the command once in each slot of this length, on one of the hosts that start it
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with_all = ["shared", "capacity"])]
    once_per: Option<Duration>,
    /// Value to announce; only `elect` sets it.
    #[arg(skip)]
    pub(crate) value: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    /// A run with default options.
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
        terminal::block_sigttou();
        client::block_on(self.run_under_lock(margins))
    }

    async fn run_under_lock(self, margins: Margins) -> Result<u8, Failure> {
        // Before anything else, so that no signal is missed.
        let mut signals = Signals::listen()
            .map_err(|error| Failure::other(format!("failed to install signal handlers: {error}")))?;
        let builder = self.client.builder().owner(self.owner.clone().unwrap_or_else(|| self.default_owner()));
        let keeper = tokio::select! {
            keeper = builder.connect_unfenced(&self.client.engine) => keeper?,
            number = signals.next_fatal() => return Ok(signals::exit_code(number)),
        };
        // With an engine that cannot fence, commands run without a token.
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
                    close_session(&keeper).await;
                    return Err(failure);
                }
            },
            number = signals.next_fatal() => {
                // The dropped request leaves the queue; closing waits until the cell has removed it.
                close_session(&keeper).await;
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
                close_session(&keeper).await;
                return Ok(0);
            }
            Err(failure) => {
                let _ = guard.release().await;
                close_session(&keeper).await;
                return Err(failure);
            }
        };
        let json = self.client.output == Output::Json;
        let started = match RunningCommand::start(&self.command, environment, json) {
            Ok(started) => started,
            Err(failure) => {
                let _ = guard.release().await;
                close_session(&keeper).await;
                return Err(failure);
            }
        };
        let sentinel = Sentinel::watch(started.pid);
        let supervisor = Supervisor::new(started, signals, margins, self.keep_group);
        let end = supervisor.until_end(&guard).await;
        // The sentinel keeps watching a group that survived KILL.
        if let (Some(sentinel), false) = (sentinel, matches!(end, End::Lost { survived_kill: true, .. })) {
            sentinel.dismiss();
        }
        match end {
            End::ByItself { code } => {
                let recorded = match (slot, guard.fence()) {
                    (Some(slot), Some(fence)) if code == 0 => slot.done(fence).await,
                    _ => Ok(()),
                };
                let released = tokio::time::timeout(CLOSE_TIMEOUT, guard.release()).await;
                match released {
                    Ok(Ok(())) => close_session(&keeper).await,
                    // The lock was lost, and the notification did not arrive in time.
                    Ok(Err(Error::NotHeld { .. } | Error::SessionLost)) => {
                        return Err(self.lost("it was lost before the command ended"));
                    }
                    // The command finished under the lock; a missing answer changes nothing.
                    Ok(Err(_)) | Err(_) => {
                        let ttl = duration::humanize(self.ttl);
                        Failure::new("unknown", 0, format!(
                            "the command has ended, but the cell does not answer: \"{}\" is free after {ttl} at the latest",
                            self.name
                        ))
                        .print(self.client.output);
                    }
                }
                recorded.map(|()| code)
            }
            End::Lost { why, survived_kill } => {
                let end = if survived_kill {
                    // The grant must not pass on before its lease ends.
                    std::mem::forget(guard);
                    "the command got KILL but has not ended yet (it may hang in the kernel)"
                } else {
                    drop(guard);
                    let _ = tokio::time::timeout(CLOSE_TIMEOUT_LOST, keeper.close()).await;
                    "the command was ended"
                };
                Err(self.lost(&format!("{why}; {end}")))
            }
        }
    }

    /// Whether to run now, if the run is for a slot.
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
            Failure::of(
                Code::Unsupported,
                format!("the engine {} does not support values: --once-per needs a cell", keeper.engine()),
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

    /// Adds advice for the command line to the error, and the holder if it can be read quickly.
    async fn explain<F: Fencing>(&self, keeper: &Keeper<F>, error: Error) -> Failure {
        let next = match &error {
            Error::Contended { .. } => "try again later, or wait with --wait 30s",
            Error::Timeout { .. } => "try again later, or use a longer --wait",
            _ => return error.into(),
        };
        let held = match tokio::time::timeout(Duration::from_millis(500), keeper.who(&self.name)).await {
            Ok(Ok(lock)) => waiting::held_by(&lock),
            _ => String::new(),
        };
        let what = match self.wait {
            Some(wait) if !self.no_wait && !wait.is_zero() => {
                format!("\"{}\" did not become free within {}{held}", self.name, duration::humanize(wait))
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

/// Whether to run the command now.
enum Turn<'a, F: Fencing> {
    /// Yes, for this slot if there is one.
    Now(Option<Slot<'a, F>>),
    /// No, the slot is done.
    Skip,
}

/// The token as environment variables and as a fence.
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

/// Closes the session, so that the cell need not wait for its expiry.
async fn close_session<F: Fencing>(keeper: &Keeper<F>) {
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, keeper.close()).await;
}
