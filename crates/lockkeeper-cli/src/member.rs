//! `lockkeeper member`: who belongs to the cell.

use clap::{Args, Subcommand};
use lockkeeper_proto::v1;
use serde_json::json;

use crate::admin;
use crate::client::{self, Client, Output};
use crate::failure::Failure;
use crate::table::Table;

/// Show, add and remove the members of a cell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper member list
  lockkeeper member add 4=10.0.0.4:7420      node 4 runs there with an empty folder
  lockkeeper member remove 2                 for good; its folder is of no use any more

One member at a time, while the cell serves. A cell has 1, 3 or 5 members that vote: with
three it goes on when one of them is lost, with five when two are.

To replace a dead node: remove it, start a new one with an empty folder, add that.")]
pub(crate) struct MemberVerb {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show the members, who leads, and how far behind each is
    List {
        #[command(flatten)]
        client: Client,
    },
    /// Add a node that runs with an empty folder: it learns everything, then it votes
    Add {
        /// The node's id and address
        #[arg(value_name = "ID=HOST:PORT", value_parser = crate::serve::member)]
        node: (u64, String),
        #[command(flatten)]
        client: Client,
    },
    /// Remove a member for good; a leader hands over first
    Remove {
        /// The node's id
        #[arg(value_name = "ID")]
        node_id: u64,
        #[command(flatten)]
        client: Client,
    },
}

impl MemberVerb {
    pub(crate) fn output(&self) -> Output {
        self.client().output
    }

    fn client(&self) -> &Client {
        match &self.what {
            What::List { client } | What::Add { client, .. } | What::Remove { client, .. } => client,
        }
    }

    pub(crate) fn run(self) -> Result<u8, Failure> {
        let client = self.client().clone();
        let (leader, members) = client::block_on(self.ask(&client))?;
        match client.output {
            Output::Json => client::print_json(&as_json(leader, &members))?,
            Output::Table => client::print(&as_table(leader, &members).to_string())?,
        }
        Ok(0)
    }

    /// Does what is asked, and then asks the leader who is there now: it alone knows how far each one is.
    async fn ask(&self, client: &Client) -> Result<(u64, Vec<v1::Member>), Failure> {
        match &self.what {
            What::List { .. } => {}
            What::Add { node: (node_id, address), .. } => {
                if client.output == Output::Table {
                    eprintln!("node {node_id} learns what the cell knows; it votes when it is done");
                }
                let request = v1::AddMemberRequest { node_id: *node_id, address: address.clone() };
                admin::call(client, |mut node| {
                    let request = request.clone();
                    async move { node.add_member(request).await }
                })
                .await?;
            }
            What::Remove { node_id, .. } => {
                let request = v1::RemoveMemberRequest { node_id: *node_id };
                admin::call(client, |mut node| async move { node.remove_member(request).await }).await?;
            }
        }
        let status = admin::status(client).await?;
        let leader = status.members.iter().find(|member| member.node_id == status.leader);
        if let Some(leader) = leader.filter(|leader| leader.node_id != status.node_id) {
            let there = Client { engine: format!("lockkeeper://{}", leader.address), ..client.clone() };
            if let Ok(status) = admin::status(&there).await {
                return Ok((status.leader, status.members));
            }
        }
        Ok((status.leader, status.members))
    }
}

fn as_json(leader: u64, members: &[v1::Member]) -> serde_json::Value {
    let members: Vec<_> = members
        .iter()
        .map(|member| {
            json!({
                "node_id": member.node_id,
                "address": member.address,
                "peer_address": member.peer_address,
                "voter": member.voter,
                "leader": member.node_id == leader,
                "lag": member.lag,
                "silent_ms": member.silent_ms,
            })
        })
        .collect();
    json!({ "members": members })
}

fn as_table(leader: u64, members: &[v1::Member]) -> Table {
    let mut table = table();
    for member in members {
        let (lag, silent_ms) = (member.lag, member.silent_ms);
        table.row(row(member.node_id, leader, &member.address, member.voter, lag, silent_ms));
    }
    table
}

/// The table of members, for `status` too.
pub(crate) fn table() -> Table {
    Table::new(&["MEMBER", "ADDRESS", "ROLE", "BEHIND", "LAST ANSWER"])
}

/// One member. What only a leader knows is a dash elsewhere.
pub(crate) fn row(
    node_id: u64,
    leader: u64,
    address: &str,
    voter: bool,
    lag: Option<u64>,
    silent_ms: Option<u64>,
) -> [String; 5] {
    let dash = || "-".to_owned();
    let role = match (node_id == leader, voter) {
        (true, _) => "leader",
        (false, true) => "voter",
        (false, false) => "learner",
    };
    let answer = silent_ms.map(|silent| match silent {
        0..1_000 => "now".to_owned(),
        silent => format!("{} s ago", silent / 1_000),
    });
    [
        node_id.to_string(),
        if address.is_empty() { dash() } else { address.to_owned() },
        role.to_owned(),
        lag.map_or_else(dash, |lag| format!("{lag} entries")),
        answer.unwrap_or_else(dash),
    ]
}
