//! `lockkeeper status`: the state of the cell.

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use lockkeeper::Status;

use crate::client::{self, Client, Output};
use crate::duration::humanize;
use crate::failure::{Failure, UNAVAILABLE};
use crate::member;

/// Exit code of a cell that answers but is degraded.
const DEGRADED: u8 = 1;

/// Show the state of the cell: members, leader, log, counts
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper status
  lockkeeper status --engine lockkeeper://10.0.0.1:7420,10.0.0.2:7420,10.0.0.3:7420
  lockkeeper status --output json | jq .leader

Exit codes: 0 healthy, 1 degraded (no leader, a member that does not answer, differing lock
tables, full disks), 69 no node answers.")]
pub(crate) struct StatusVerb {
    #[command(flatten)]
    pub(crate) client: Client,
}

impl StatusVerb {
    pub(crate) fn run(self) -> Result<u8, Failure> {
        let status = client::block_on(async {
            match self.status().await {
                Err(failure) if failure.exit == UNAVAILABLE => {
                    self.status_for_operators().await.ok_or(failure)
                }
                result => result,
            }
        })?;
        match self.client.output {
            Output::Json => client::print_json(&status)?,
            Output::Table => client::print(&text(&status))?,
        }
        Ok(if status.degradations().is_empty() { 0 } else { DEGRADED })
    }
}

impl StatusVerb {
    async fn status(&self) -> Result<Status, Failure> {
        Ok(self.client.connect().await?.status().await?)
    }

    /// Asks by a call that a node also answers while its client connections are all in use.
    async fn status_for_operators(&self) -> Option<Status> {
        let admin = self.client.admin().ok()?;
        tokio::time::timeout(self.client.connect_timeout, admin.status()).await.ok()?.ok()
    }
}

/// The highest cell version that this node supports, if it is above the current one.
fn next_version(status: &Status) -> String {
    match status.cell_version_max > status.cell_version {
        true => format!(" (node {} supports version {})", status.node_id, status.cell_version_max),
        false => String::new(),
    }
}

fn text(status: &Status) -> String {
    let leader = match status.leader {
        None => "unknown: the cell cannot grant locks now".to_owned(),
        Some(leader) => format!("node {leader}, term {}", status.term),
    };
    let lines = [
        ("cell", format!("{}, version {}{}", status.cell, status.cell_version, next_version(status))),
        ("leader", leader),
        (
            "node",
            format!(
                "{}, version {}, uptime {}",
                status.node_id,
                status.version,
                humanize(Duration::from_millis(status.uptime_ms))
            ),
        ),
        (
            "locks",
            format!(
                "{} held, {} waiting, last token {}",
                status.locks_held, status.waiting, status.last_token
            ),
        ),
        ("sessions", status.sessions.to_string()),
        ("values", status.values.to_string()),
        ("state", format!("{} of {} bytes", status.state_bytes, status.state_bytes_max)),
        ("table", format!("hash {} after entry {}", status.table_hash, status.table_hash_index)),
        (
            "log",
            format!(
                "entry {}, applied {}, snapshot at {}, purged to {}",
                status.last_log_index, status.applied_index, status.snapshot_index, status.purged_index
            ),
        ),
        (
            "timing",
            format!(
                "heartbeat {} ms, election timeout {} ms, for round trips up to {} ms",
                status.heartbeat_ms, status.election_timeout_ms, status.round_trip_max_ms
            ),
        ),
    ];
    let mut text = String::new();
    for (name, value) in lines {
        let _ = writeln!(text, "{name:<9} {value}");
    }
    for member in status.too_far() {
        let _ = writeln!(
            text,
            "warning   the round trip to node {} takes {} ms: set a slower --timing on all nodes",
            member.node_id,
            member.round_trip_us.unwrap_or_default() / 1_000
        );
    }
    for why in status.degradations() {
        let _ = writeln!(text, "degraded  {why}");
    }
    let mut members = member::table();
    for known in &status.members {
        members.row(member::row(known, status.leader));
    }
    let _ = write!(text, "\n{members}");
    text
}
