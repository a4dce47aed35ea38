//! `lockkeeper observe NAME`: the leader of an election, and every change.

use std::time::Duration;

use clap::Args;
use lockkeeper::{Error, Leader};
use serde_json::json;

use crate::client::{self, Client, Output};
use crate::escape;
use crate::failure::Failure;

/// Pause before the next attempt when no engine answers.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Show the leader of an election, and every change
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper observe scheduler
  lockkeeper observe scheduler --once
  lockkeeper observe scheduler --output json | while read -r line; do ...

With --output json there is one line for each change: {\"leader\": {\"value\", \"epoch\",
\"owner\"}}, or {\"leader\": null} if there is no leader. While no engine answers, the error
goes to stderr, and the command continues.")]
pub(crate) struct Observe {
    /// Name of the election
    name: String,
    /// Show the current leader and exit; exit with 1 if there is none
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    pub(crate) client: Client,
}

impl Observe {
    pub(crate) fn run(self) -> Result<u8, Failure> {
        client::block_on(async {
            let keeper = self.client.connect().await?.fenced()?;
            let election = keeper.election(self.name.as_str());
            if self.once {
                let leader = election.leader().await?;
                self.show(leader.as_ref())?;
                return Ok(u8::from(leader.is_none()));
            }
            let mut observer = election.observe();
            loop {
                match observer.next().await {
                    Ok(leader) => self.show(leader.as_ref())?,
                    Err(error @ (Error::Unavailable(_) | Error::NotLeader { .. } | Error::Unknown(_))) => {
                        Failure::from(error).print(self.client.output);
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        })
    }

    fn show(&self, leader: Option<&Leader>) -> Result<(), Failure> {
        let line = match (self.client.output, leader) {
            (Output::Json, leader) => escape::json(&json!({"leader": leader}).to_string()).into_owned(),
            (Output::Table, None) => format!("\"{}\" has no leader", escape::line(&self.name)),
            (Output::Table, Some(leader)) => {
                let value = if leader.value.is_empty() { "-" } else { leader.value.as_str() };
                // A line break in the value must not look like another event.
                format!("{}  epoch {}  {}", escape::line(value), leader.epoch, escape::line(&leader.owner))
            }
        };
        client::print(&format!("{line}\n"))
    }
}
