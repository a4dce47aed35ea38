//! `lockkeeper history NAME`: what happened to a lock; without a name, what operators did.

use clap::Args;
use lockkeeper::{AuditAct, LockEvent};
use lockkeeper_proto::utc::shown_ms;
use serde::Serialize;

use crate::client::{self, Client, Output};
use crate::duration::words;
use crate::failure::Failure;
use crate::table::Table;

/// Show the last events of a lock, or what operators did
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper history nightly-report            who held it, since when, how it ended
  lockkeeper history                           what operators did: force-releases, members
  lockkeeper history nightly-report --output json | jq -r '.events[] | .what + \" \" + .owner'

The newest comes first. A cell remembers at most 32 events of each lock, and 1,000
acts of operators; they survive restarts and fail-overs. WHEN is cell time, which
stands still while nobody leads; UTC is the leader's wall clock at that moment, for
people only: nothing is decided by it.")]
pub(crate) struct History {
    /// The lock [default: what operators did]
    name: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    #[command(flatten)]
    pub(crate) client: Client,
}

#[derive(Serialize)]
struct Events<'a> {
    lock: &'a str,
    events: &'a [LockEvent],
}

#[derive(Serialize)]
struct Acts<'a> {
    acts: &'a [AuditAct],
}

impl History {
    pub(crate) fn run(self) -> Result<u8, Failure> {
        let limit = self.limit.unwrap_or(0);
        match &self.name {
            Some(name) => {
                let events = client::block_on(async {
                    let keeper = self.client.connect().await?;
                    Ok(keeper.history(name, limit).await?)
                })?;
                match self.client.output {
                    Output::Json => client::print_json(&Events { lock: name, events: &events })?,
                    Output::Table if events.is_empty() => {
                        client::print(&format!("nothing is remembered of \"{name}\"\n"))?;
                    }
                    Output::Table => client::print(&table(&events).to_string())?,
                }
            }
            None => {
                let acts = client::block_on(async {
                    let keeper = self.client.connect().await?;
                    Ok(keeper.audit(limit).await?)
                })?;
                match self.client.output {
                    Output::Json => client::print_json(&Acts { acts: &acts })?,
                    Output::Table if acts.is_empty() => client::print("operators did nothing yet\n")?,
                    Output::Table => client::print(&audit(&acts).to_string())?,
                }
            }
        }
        Ok(0)
    }
}

/// What happened, in words.
fn told(event: &LockEvent) -> String {
    let word = match event.what.as_str() {
        "session_closed" => "released (session closed)",
        "session_expired" => "lost (session expired)",
        "forced" => "taken by force",
        "wounded" => "lost (to an older scope)",
        "cancelled" => "given back (caller gone)",
        other => other,
    };
    word.to_owned()
}

/// The leader's wall clock at the time, without the zone: the heading names it.
fn utc(utc_ms: Option<u64>) -> String {
    utc_ms.map_or_else(|| "-".to_owned(), |ms| shown_ms(ms).trim_end_matches(" UTC").to_owned())
}

fn table(events: &[LockEvent]) -> Table {
    let mut table = Table::new(&["WHEN", "UTC", "WHAT", "TOKEN", "WHO", "TOOK", "SESSION", "WHY"]);
    for event in events {
        let took = match (event.waited, event.held) {
            (Some(waited), _) if waited.is_zero() => "at once".to_owned(),
            (Some(waited), _) => format!("waited {}", words(waited)),
            (None, Some(held)) => format!("held {}", words(held)),
            (None, None) => "-".to_owned(),
        };
        table.row([
            format!("{} ago", words(event.ago)),
            utc(Some(event.utc_ms)),
            told(event),
            event.token.to_string(),
            if event.owner.is_empty() { "-".to_owned() } else { event.owner.clone() },
            took,
            event.session.clone(),
            event.reason.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn audit(acts: &[AuditAct]) -> Table {
    let mut table = Table::new(&["NUMBER", "WHEN", "UTC", "WHO", "WHAT", "WHY"]);
    for act in acts {
        let what = match (act.what.as_str(), &act.lock, &act.members) {
            ("force_release", Some(lock), _) => format!(
                "freed \"{lock}\" by force: {} lost it, last token {}",
                act.released.unwrap_or(0),
                act.last_token.unwrap_or(0)
            ),
            ("access" | "note", ..) => act.change.clone().unwrap_or_default(),
            ("members", _, Some(members)) => format!("the members are now {members}"),
            ("restored", ..) => {
                format!("made from a backup: tokens go on above {}", act.last_token.unwrap_or(0))
            }
            (other, ..) => other.to_owned(),
        };
        table.row([
            act.number.to_string(),
            format!("{} ago", words(act.ago)),
            utc(act.utc_ms),
            act.by.clone().unwrap_or_else(|| "-".to_owned()),
            what,
            act.reason.clone().unwrap_or_default(),
        ]);
    }
    table
}
