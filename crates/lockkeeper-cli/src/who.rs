//! `lockkeeper who NAME`: who holds a lock, and who waits for it.

use std::fmt::Write;

use clap::Args;
use lockkeeper::LockState;

use crate::client::{self, Client, Output};
use crate::duration::humanize;
use crate::failure::Failure;
use crate::table::Table;

/// Show who holds a lock and who waits for it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper who nightly-report
  lockkeeper who nightly-report --output json | jq -r '.holders[].owner'

A free lock is not an error: the exit code is 0.")]
pub(crate) struct Who {
    /// Name of the lock
    name: String,
    #[command(flatten)]
    pub(crate) client: Client,
}

impl Who {
    pub(crate) fn run(self) -> Result<u8, Failure> {
        let lock = client::block_on(async {
            let keeper = self.client.connect().await?;
            Ok(keeper.who(&self.name).await?)
        })?;
        match self.client.output {
            Output::Json => client::print_json(&lock)?,
            Output::Table => client::print(&text(&lock))?,
        }
        Ok(0)
    }
}

fn text(lock: &LockState) -> String {
    let mut text = String::new();
    let name = &lock.lock;
    // Writing to a string cannot fail.
    let _ = match (lock.holders.is_empty(), lock.closed.is_zero()) {
        (true, true) if lock.last_token == 0 => writeln!(text, "\"{name}\" is free"),
        (true, true) => writeln!(text, "\"{name}\" is free (last token {})", lock.last_token),
        (true, false) => {
            writeln!(
                text,
                "\"{name}\" is in lock-delay for another {} (its last holder was lost)",
                humanize(lock.closed)
            )
        }
        (false, _) if lock.capacity > 1 => {
            let taken: u32 = lock.holders.iter().map(|holder| holder.permits).sum();
            writeln!(text, "\"{name}\" is held: {taken} of {} permits in use", lock.capacity)
        }
        (false, _) => writeln!(text, "\"{name}\" is held"),
    };
    if !lock.holders.is_empty() {
        let mut table = Table::new(&["HOLDER", "TOKEN", "MODE", "PERMITS", "HELD FOR", "SESSION"]);
        for holder in &lock.holders {
            table.row([
                holder.owner.clone(),
                holder.token.to_string(),
                holder.mode.to_string(),
                holder.permits.to_string(),
                humanize(holder.held),
                holder.session.clone(),
            ]);
        }
        let _ = write!(text, "\n{table}");
    }
    if lock.queue.is_empty() {
        let _ = writeln!(text, "\nno waiters");
    } else {
        let mut table = Table::new(&["WAITER", "POSITION", "MODE", "WAITING FOR", "SESSION"]);
        for waiter in &lock.queue {
            table.row([
                waiter.owner.clone(),
                waiter.position.to_string(),
                waiter.mode.to_string(),
                humanize(waiter.waited),
                waiter.session.clone(),
            ]);
        }
        let _ = write!(text, "\n{table}");
        let hidden = (lock.waiting as usize).saturating_sub(lock.queue.len());
        if hidden > 0 {
            let _ = writeln!(text, "and {hidden} more");
        }
    }
    text
}
