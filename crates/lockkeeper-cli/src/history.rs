//! `lockkeeper history NAME`: the events of a lock; without a name, the audit trail.

use clap::Args;
use lockkeeper::{AuditAct, AuditActKind, LockEvent, LockEventKind};
use lockkeeper_api::history::LockHistory;
use lockkeeper_net::utc::shown_ms;

use crate::client::{self, Client, Output};
use crate::duration::humanize;
use crate::failure::Failure;
use crate::table::Table;

/// Show the last events of a lock, or the audit trail
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper history nightly-report            its holders, and how each grant ended
  lockkeeper history                           the audit trail: force-releases, members, access
  lockkeeper history nightly-report --output json | jq -r '.events[] | .what + \" \" + .owner'

The newest event comes first. A cell keeps at most 32 events of each lock and 1,000
actions of operators; they survive restarts and fail-overs. WHEN is cell time, which
does not advance while there is no leader. UTC is the leader's wall clock at that moment;
no decision depends on it.")]
pub(crate) struct History {
    /// Name of the lock [default: show the audit trail]
    name: Option<String>,
    /// Maximum number of events to show
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    #[command(flatten)]
    pub(crate) client: Client,
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
                    Output::Json => client::print_json(&LockHistory { lock: name.clone(), events })?,
                    Output::Table if events.is_empty() => {
                        client::print(&format!("no events recorded for \"{name}\"\n"))?;
                    }
                    Output::Table => client::print(&table(&events).to_string())?,
                }
            }
            None => {
                let audit = client::block_on(async {
                    let keeper = self.client.connect().await?;
                    Ok(keeper.audit(limit).await?)
                })?;
                match self.client.output {
                    Output::Json => client::print_json(&audit)?,
                    Output::Table if audit.acts.is_empty() => client::print("no actions recorded\n")?,
                    Output::Table => client::print(&acts(&audit.acts).to_string())?,
                }
            }
        }
        Ok(0)
    }
}

/// Describes the event.
fn describe(event: &LockEvent) -> String {
    let word = match &event.what {
        LockEventKind::SessionClosed => "released (session closed)",
        LockEventKind::SessionExpired => "lost (session expired)",
        LockEventKind::Forced => "force-released",
        LockEventKind::Wounded => "lost (to an older scope)",
        LockEventKind::Cancelled => "released (caller disconnected)",
        // Words that are their own description, and those of newer versions.
        word => word.as_str(),
    };
    word.to_owned()
}

/// The leader's wall clock at the time, without the zone: the heading names it.
fn utc(utc_ms: Option<u64>) -> String {
    utc_ms.map_or_else(|| "-".to_owned(), |ms| shown_ms(ms).trim_end_matches(" UTC").to_owned())
}

fn table(events: &[LockEvent]) -> Table {
    let mut table = Table::new(&["WHEN", "UTC", "EVENT", "TOKEN", "OWNER", "DURATION", "SESSION", "REASON"]);
    for event in events {
        let took = match (event.waited, event.held) {
            (Some(waited), _) if waited.is_zero() => "no wait".to_owned(),
            (Some(waited), _) => format!("waited {}", humanize(waited)),
            (None, Some(held)) => format!("held {}", humanize(held)),
            (None, None) => "-".to_owned(),
        };
        table.row([
            format!("{} ago", humanize(event.ago)),
            utc(Some(event.utc_ms)),
            describe(event),
            event.token.to_string(),
            if event.owner.is_empty() { "-".to_owned() } else { event.owner.clone() },
            took,
            event.session.clone(),
            event.reason.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn acts(acts: &[AuditAct]) -> Table {
    let mut table = Table::new(&["NUMBER", "WHEN", "UTC", "WHO", "ACTION", "REASON"]);
    for act in acts {
        let what = match (&act.what, &act.lock, &act.members) {
            (AuditActKind::ForceRelease, Some(lock), _) => {
                let holders = match act.released.unwrap_or(0) {
                    0 => "no holders".to_owned(),
                    1 => "1 holder".to_owned(),
                    more => format!("{more} holders"),
                };
                format!("force-released \"{lock}\": {holders}, last token {}", act.last_token.unwrap_or(0))
            }
            (AuditActKind::Access | AuditActKind::Note, ..) => act.change.clone().unwrap_or_default(),
            (AuditActKind::Members, _, Some(members)) => format!("members changed to {members}"),
            (AuditActKind::Restored, ..) => {
                format!("restored from a backup: tokens continue above {}", act.last_token.unwrap_or(0))
            }
            (other, ..) => other.to_string(),
        };
        table.row([
            act.number.to_string(),
            format!("{} ago", humanize(act.ago)),
            utc(act.utc_ms),
            act.by.clone().unwrap_or_else(|| "-".to_owned()),
            what,
            act.reason.clone().unwrap_or_default(),
        ]);
    }
    table
}
