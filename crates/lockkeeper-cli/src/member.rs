//! `lockkeeper member`: the members of a cell.

use clap::{Args, Subcommand};
use lockkeeper::Member;
use lockkeeper::admin::Members;
use serde::Serialize;

use crate::client::{self, Client, Output};
use crate::failure::Failure;
use crate::table::Table;

/// Show, add and remove the members of a cell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper member list
  lockkeeper member add 4=10.0.0.4:7420      node 4 runs there with an empty folder
  lockkeeper member remove 2                 permanently; its folder cannot be used again

Members change one at a time, while the cell serves. A cell has 1, 3 or 5 voting members: three
survive the loss of one, five the loss of two.

To replace a dead node, remove it, start a new one with an empty folder, and add that.")]
pub(crate) struct MemberVerb {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the members, the leader, and the lag of each member
    List {
        #[command(flatten)]
        client: Client,
    },
    /// Add a node that runs with an empty folder: it catches up, then it votes
    Add {
        /// The node's id and address
        #[arg(value_name = "ID=HOST:PORT", value_parser = crate::serve::member)]
        node: (u64, String),
        #[command(flatten)]
        client: Client,
    },
    /// Remove a member permanently; a leader transfers its leadership first
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
        match &self.action {
            Action::List { client } | Action::Add { client, .. } | Action::Remove { client, .. } => client,
        }
    }

    pub(crate) fn run(self) -> Result<u8, Failure> {
        let client = self.client().clone();
        let members = client::block_on(self.execute(&client))?;
        match client.output {
            Output::Json => client::print_json(&List::new(&members))?,
            Output::Table => client::print(&member_table(&members).to_string())?,
        }
        Ok(0)
    }

    async fn execute(&self, client: &Client) -> Result<Members, Failure> {
        let admin = client.admin()?;
        match &self.action {
            Action::List { .. } => {}
            Action::Add { node: (node_id, address), .. } => {
                if client.output == Output::Table {
                    eprintln!("node {node_id} is catching up; it will vote afterwards");
                }
                admin.add_member(*node_id, address).await?;
            }
            Action::Remove { node_id, .. } => admin.remove_member(*node_id).await?,
        }
        Ok(admin.members().await?)
    }
}

/// A member in the format of `/v1/members`, and whether it leads.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    member: &'a Member,
    leader: bool,
}

#[derive(Serialize)]
struct List<'a> {
    members: Vec<Listed<'a>>,
}

impl<'a> List<'a> {
    fn new(members: &'a Members) -> List<'a> {
        let listed = |member: &'a Member| Listed { member, leader: Some(member.node_id) == members.leader };
        List { members: members.members.iter().map(listed).collect() }
    }
}

fn member_table(members: &Members) -> Table {
    let mut table = table();
    for member in &members.members {
        table.row(row(member, members.leader));
    }
    table
}

/// The table of members, for `status` too.
pub(crate) fn table() -> Table {
    Table::new(&["MEMBER", "ADDRESS", "ROLE", "LAG", "LAST ANSWER"])
}

/// The row of a member. Fields that only a leader knows are a dash elsewhere.
pub(crate) fn row(member: &Member, leader: Option<u64>) -> [String; 5] {
    let dash = || "-".to_owned();
    let role = match (Some(member.node_id) == leader, member.voter) {
        (true, _) => "leader",
        (false, true) => "voter",
        (false, false) => "learner",
    };
    let answer = member.silent_ms.map(|silent| match silent {
        0..1_000 => "now".to_owned(),
        silent => format!("{} s ago", silent / 1_000),
    });
    [
        member.node_id.to_string(),
        if member.address.is_empty() { dash() } else { member.address.clone() },
        role.to_owned(),
        member.lag.map_or_else(dash, |lag| format!("{lag} entries")),
        answer.unwrap_or_else(dash),
    ]
}
