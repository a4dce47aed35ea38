//! `lockkeeper force-release NAME`: free a lock, whoever holds it.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use lockkeeper::LockState;
use serde_json::json;

use crate::client::{self, Client, Output};
use crate::duration::words;
use crate::escape;
use crate::failure::Failure;

/// Free a lock, whoever holds it; its holder becomes stale at every gate
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper force-release nightly-report --reason \"host db-3 is gone\"
  lockkeeper force-release nightly-report --yes

The lock goes to the next who waits. The former holder is told, and its token is
stale from now on: a resource that checks tokens refuses it. A resource that does
not is not protected from a holder that is still at work: end that one first.

On a terminal it asks first; --yes answers. Without a terminal it does not ask.")]
pub(crate) struct ForceRelease {
    /// The lock
    name: String,
    /// Why; it is recorded
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    pub(crate) client: Client,
}

impl ForceRelease {
    pub(crate) fn run(self) -> Result<u8, Failure> {
        let reason = self.reason.clone().unwrap_or_else(no_reason);
        let forced = client::block_on(async {
            let keeper = self.client.connect().await?;
            if !self.yes && io::stdin().is_terminal() && io::stderr().is_terminal() {
                ask(&keeper.who(&self.name).await?)?;
            }
            Ok(keeper.force_release(&self.name, &reason).await?)
        })?;
        match self.client.output {
            Output::Json => client::print_json(
                &json!({"lock": self.name, "released": forced.holders > 0, "last_token": forced.last_token}),
            )?,
            Output::Table => client::print(&text(&self.name, forced.holders, forced.last_token))?,
        }
        Ok(0)
    }
}

fn text(name: &str, released: u32, last_token: u64) -> String {
    match released {
        0 => format!("nobody held \"{name}\"; tokens up to {last_token} are stale\n"),
        1 => format!("\"{name}\" was released; its former holder is stale (last token now {last_token})\n"),
        more => format!(
            "\"{name}\" was released; its {more} former holders are stale (last token now {last_token})\n"
        ),
    }
}

fn ask(lock: &LockState) -> Result<(), Failure> {
    let held = match &lock.holders[..] {
        [] => "nobody holds it".to_owned(),
        [first, others @ ..] => {
            let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
            format!("held by {}{more} for {}", first.owner, words(first.held))
        }
    };
    let failed =
        |error: io::Error| Failure::other(format!("the terminal cannot be asked: {error}; use --yes"));
    let mut stderr = io::stderr().lock();
    let question =
        format!("Release \"{}\" by force? It is {held}, and {} wait. [y/N] ", lock.lock, lock.waiting);
    write!(stderr, "{}", escape::line(&question)).and_then(|()| stderr.flush()).map_err(failed)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(failed)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new("cancelled", crate::failure::OTHER, "nothing was done")),
    }
}

/// Somebody did it, even if they did not say why.
fn no_reason() -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| "somebody".to_owned());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{user} on {host} gave no reason")
}
