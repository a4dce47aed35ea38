//! `lockkeeper force-release NAME`: releases a lock regardless of its holder.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use lockkeeper::LockState;
use lockkeeper_api::acquire::Forced;
use serde::Serialize;

use crate::client::{self, Client, Output};
use crate::duration::humanize;
use crate::escape;
use crate::failure::Failure;

/// Release a lock regardless of its holder, and make its tokens stale
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper force-release nightly-report --reason \"host db-3 is gone\"
  lockkeeper force-release nightly-report --yes

The next waiter gets the lock. The former holder is notified, and its token is stale
from now on: a resource that checks tokens refuses it. A resource without a check is
not protected from a holder that still works: stop the holder first.

On a terminal it asks for confirmation, unless --yes is given.")]
pub(crate) struct ForceRelease {
    /// Name of the lock
    name: String,
    /// Reason, which is recorded
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    pub(crate) client: Client,
}

/// The answer of the HTTP API, with the lock that it is about.
#[derive(Serialize)]
struct Answer<'a> {
    lock: &'a str,
    #[serde(flatten)]
    forced: Forced,
}

impl ForceRelease {
    pub(crate) fn run(self) -> Result<u8, Failure> {
        let reason = self.reason.clone().unwrap_or_else(default_reason);
        let forced = client::block_on(async {
            let keeper = self.client.connect().await?;
            if !self.yes && io::stdin().is_terminal() && io::stderr().is_terminal() {
                confirm(&keeper.who(&self.name).await?)?;
            }
            Ok(keeper.force_release(&self.name, &reason).await?)
        })?;
        match self.client.output {
            Output::Json => client::print_json(&Answer {
                lock: &self.name,
                forced: Forced { released: forced.holders > 0, last_token: forced.last_token },
            })?,
            Output::Table => client::print(&text(&self.name, forced.holders, forced.last_token))?,
        }
        Ok(0)
    }
}

fn text(name: &str, released: u32, last_token: u64) -> String {
    match released {
        0 => format!("nobody held \"{name}\"; tokens up to {last_token} are stale\n"),
        1 => format!("released \"{name}\"; its former holder is stale (last token now {last_token})\n"),
        more => format!(
            "released \"{name}\"; its {more} former holders are stale (last token now {last_token})\n"
        ),
    }
}

/// Describes what a force-release would do, and asks whether to go on.
fn question(lock: &LockState) -> String {
    let (name, waiting) = (&lock.lock, lock.waiting);
    match &lock.holders[..] {
        [] => {
            format!("Nobody holds \"{name}\" ({waiting} waiting). Invalidate its old tokens anyway? [y/N] ")
        }
        [first, others @ ..] => {
            let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
            let held = humanize(first.held);
            format!(
                "\"{name}\" is held by {}{more} for {held}, {waiting} waiting. Force-release it? [y/N] ",
                first.owner
            )
        }
    }
}

fn confirm(lock: &LockState) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::other(format!("failed to ask on the terminal: {error}; use --yes"));
    let mut stderr = io::stderr().lock();
    let question = question(lock);
    write!(stderr, "{}", escape::line(&question)).and_then(|()| stderr.flush()).map_err(failed)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(failed)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new("cancelled", crate::failure::OTHER, "nothing was done")),
    }
}

/// The reason that is recorded if none is given.
fn default_reason() -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| "unknown user".to_owned());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("no reason given by {user} on {host}")
}
