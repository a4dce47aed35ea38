//! `lockkeeper ls`: the locks that are held or waited for.

use clap::Args;
use lockkeeper::{Keeper, LockPage, LockState, Unfenced};

use crate::client::{self, Client, Output};
use crate::duration::humanize;
use crate::failure::Failure;
use crate::table::Table;

/// Maximum page size of a cell.
const PAGE: u32 = 1_000;

/// List the locks that are held or waited for
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper ls                                all locks
  lockkeeper ls orders/                        locks whose names begin with orders/
  lockkeeper ls --output json | jq -r '.locks[].lock'

Free locks are not listed: a lock exists while it is held or waited for.")]
pub(crate) struct Ls {
    /// Only locks whose names begin with this
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    /// Maximum number of locks to list
    #[arg(long, value_name = "N", default_value_t = PAGE, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    #[command(flatten)]
    pub(crate) client: Client,
}

impl Ls {
    pub(crate) fn run(self) -> Result<u8, Failure> {
        let page = client::block_on(async {
            let keeper = self.client.connect().await?;
            self.pages(&keeper).await
        })?;
        match self.client.output {
            Output::Json => client::print_json(&page)?,
            Output::Table if page.locks.is_empty() => {
                let what = if self.prefix.is_empty() { "" } else { " with this prefix" };
                client::print(&format!("no locks in use{what}\n"))?;
            }
            Output::Table => {
                client::print(&table(&page.locks).to_string())?;
                if page.more {
                    eprintln!("more locks exist: name a prefix, or raise --limit");
                }
            }
        }
        Ok(0)
    }

    /// Fetches pages up to the limit.
    async fn pages(&self, keeper: &Keeper<Unfenced>) -> Result<LockPage, Failure> {
        let mut all = LockPage::default();
        loop {
            let left = self.limit.saturating_sub(u32::try_from(all.locks.len()).unwrap_or(u32::MAX));
            let after = all.locks.last().map(|lock| lock.lock.clone());
            let page = keeper.locks(&self.prefix, left.min(PAGE), after.as_deref()).await?;
            all.more = page.more && !page.locks.is_empty();
            all.locks.extend(page.locks);
            if !all.more || all.locks.len() >= self.limit as usize {
                return Ok(all);
            }
        }
    }
}

fn table(locks: &[LockState]) -> Table {
    let mut table = Table::new(&["NAME", "OWNER", "TOKEN", "MODE", "HELD FOR", "WAITING"]);
    for lock in locks {
        let (owner, mode, held) = match &lock.holders[..] {
            [] if lock.closed.is_zero() => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
            [] => (format!("(closed for {})", humanize(lock.closed)), "-".to_owned(), "-".to_owned()),
            [only] => (only.owner.clone(), mode(lock, only.mode), humanize(only.held)),
            [first, others @ ..] => (
                format!("{} and {} more", first.owner, others.len()),
                mode(lock, first.mode),
                humanize(first.held),
            ),
        };
        table.row([
            lock.lock.clone(),
            owner,
            lock.last_token.to_string(),
            mode,
            held,
            lock.waiting.to_string(),
        ]);
    }
    table
}

fn mode(lock: &LockState, mode: lockkeeper::Mode) -> String {
    let taken: u32 = lock.holders.iter().map(|holder| holder.permits).sum();
    if lock.capacity > 1 { format!("{taken} of {}", lock.capacity) } else { mode.to_string() }
}
