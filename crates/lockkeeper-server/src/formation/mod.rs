//! Formation of a cell: its nodes find each other, and one of them forms it.
//!
//! Nodes that are started with the same `--cell` and empty folders send hello to each other. When all have answered, the
//! node with the lowest ID generates the cell's name and secret, records the members with their data folders, sends the
//! secret to the others, and starts the first election. Because all nodes must be present this first time, a node that
//! returns with an empty folder cannot help to form a second cell in place of the first.

pub(crate) mod addresses;
pub(crate) mod cell_secret;
pub mod versions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper_api::peer::Standing;
use tokio::time::Instant;

use crate::backup;
use crate::data_dir::DataDir;
use crate::failure::Failure;
use crate::formation::cell_secret::CellSecret;
use crate::raft::Consensus;
use crate::raft::network::{PeerInfo, hello, join};
use crate::raft::types::Member;

/// Interval between two rounds of hello.
const HELLO_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between two checks whether the other nodes belong to this cell.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the node logs what it waits for.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Mismatch between a node and its cell. Each message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CellMismatch {
    /// The data belongs to another cell.
    #[error(
        "the data folder belongs to cell {own}, but node {node_id} at {address} belongs to cell {theirs}: start \
         this node with its own folder (--data-dir), or correct the addresses in --cell"
    )]
    OtherCell {
        /// The cell of the folder.
        own: String,
        /// The cell of the other node.
        theirs: String,
        /// The other node.
        node_id: u64,
        /// Its address.
        address: String,
    },
    /// Another node has this address.
    #[error(
        "--cell expects node {expected} at {address}, but the node there is node {found}: correct --cell or \
         --node-id"
    )]
    OtherNode {
        /// The node that should have this address.
        expected: u64,
        /// The node that has it.
        found: u64,
        /// The address.
        address: String,
    },
    /// Two nodes have different lists.
    #[error(
        "node {node_id} at {address} was started with --cell {theirs}, this node with --cell {own}: start all nodes \
         of a new cell with the same list"
    )]
    OtherList {
        /// The list of this node.
        own: String,
        /// The list of the other node.
        theirs: String,
        /// The other node.
        node_id: u64,
        /// Its address.
        address: String,
    },
    /// The node was started with a list that differs from its cell's members.
    #[error(
        "this node belongs to cell {cell} with the members {members}, but --cell lists {configured}: leave out --cell \
         or correct it; members are changed with lockkeeper member add and remove"
    )]
    OtherMembers {
        /// The cell.
        cell: String,
        /// Its members.
        members: String,
        /// The members in `--cell`.
        configured: String,
    },
    /// The folder is empty, but the cell knows this node.
    #[error(
        "the cell {cell} knows node {node_id} with another data folder, and this one is empty: bring the old folder \
         back exactly as the node left it (an older copy lacks votes and is not safe); if it is lost, remove the node \
         from the cell (lockkeeper member remove {node_id} --engine lockkeeper://{address}), start it with an empty \
         folder and add it again (lockkeeper member add {node_id}={own} --engine lockkeeper://{address})"
    )]
    LostData {
        /// The cell.
        cell: String,
        /// This node.
        node_id: u64,
        /// The client address of a member.
        address: String,
        /// The address of this node.
        own: String,
    },
}

/// Formation of a node's cell.
pub(crate) struct Formation {
    pub(crate) home: Arc<DataDir>,
    pub(crate) consensus: Consensus,
    /// The members of `--cell` and their addresses, including this node.
    pub(crate) configured: BTreeMap<u64, String>,
    pub(crate) own: Member,
}

impl Formation {
    /// Does everything that needs no other nodes, or little time.
    pub(crate) async fn start(&self) -> Result<Result<(), CellMismatch>, Failure> {
        let own = self.home.identity();
        if self.consensus.is_formed().await? {
            if let Err(mismatch) = self.check_list().await {
                return Ok(Err(mismatch));
            }
        } else if own.founding.len() == 1 {
            // The node was interrupted after it had generated the name.
            self.consensus.form(own.founding).await?;
        } else if own.cell.is_empty() && self.configured.len() == 1 {
            let member = Member { folder: own.folder, ..self.own.clone() };
            self.form_cell(BTreeMap::from([(own.node_id, member)])).await?;
        }
        if self.consensus.is_alone() {
            self.consensus.campaign().await?;
        }
        Ok(Ok(()))
    }

    /// Finds the cell, if the node belongs to none yet, and then checks that the other nodes belong to the same cell.
    /// Returns only if they do not.
    pub(crate) async fn run(&self) -> Result<CellMismatch, Failure> {
        if self.consensus.is_alone() {
            self.publish_address().await?;
        }
        if self.home.cell().is_none()
            && let Err(mismatch) = self.find_cell().await?
        {
            return Ok(mismatch);
        }
        if !self.consensus.is_formed().await? {
            self.finish_forming().await?;
        }
        Ok(self.check_others().await)
    }

    /// Updates this node's address in a cell of one node: it may have changed, and a restored backup has none.
    async fn publish_address(&self) -> Result<(), Failure> {
        let own = self.home.identity();
        let member = Member { folder: own.folder, ..self.own.clone() };
        loop {
            let status = self.consensus.status();
            let known = status.members.iter().find(|known| known.node_id == own.node_id);
            if member.client.is_empty() || known.is_some_and(|known| known.member == member) {
                return Ok(());
            }
            if status.leads {
                match self.consensus.move_member(own.node_id, member.clone()).await {
                    Ok(()) => return Ok(()),
                    Err(failure) => tracing::debug!(%failure, "failed to publish the address, retrying"),
                }
            }
            tokio::time::sleep(HELLO_INTERVAL).await;
        }
    }

    async fn find_cell(&self) -> Result<Result<(), CellMismatch>, Failure> {
        let own = self.home.identity();
        let mut logged = None::<Instant>;
        loop {
            if self.home.cell().is_some() {
                return Ok(Ok(()));
            }
            let answers = self.hello_all().await;
            let discovery = match self.evaluate(&answers) {
                Ok(discovery) => discovery,
                Err(mismatch) => return Ok(Err(mismatch)),
            };
            let waits_for = match discovery {
                Discovery::AllPresent(mut members) if self.configured.keys().next() == Some(&own.node_id) => {
                    members.insert(own.node_id, Member { folder: own.folder, ..self.own.clone() });
                    self.form_cell(members).await?;
                    return Ok(Ok(()));
                }
                Discovery::AllPresent(_) => {
                    format!("node {} to form the cell", self.configured.keys().next().unwrap_or(&0))
                }
                Discovery::Member => "the leader of the cell to send the first entries".to_owned(),
                Discovery::NotAMember { address } => format!(
                    "an administrator to add this node to the cell: lockkeeper member add {}={} --engine \
                     lockkeeper://{address}",
                    own.node_id, self.own.client
                ),
                Discovery::Incomplete(missing) => format!(
                    "{}: a new cell is formed when all of its nodes are reachable",
                    missing.join(", ")
                ),
            };
            if logged.is_none_or(|logged| logged.elapsed() > LOG_INTERVAL) {
                logged = Some(Instant::now());
                tracing::info!("waiting for {waits_for}");
            }
            tokio::time::sleep(HELLO_INTERVAL).await;
        }
    }

    async fn form_cell(&self, members: BTreeMap<u64, Member>) -> Result<(), Failure> {
        let no_random = |error: std::io::Error| {
            Failure::Unavailable(format!("failed to read random bytes from the system: {error}"))
        };
        let cell = backup::new_cell().map_err(no_random)?;
        let secret = CellSecret::generate().map_err(no_random)?;
        self.home
            .join(&cell, secret, members.clone())
            .map_err(|error| Failure::Unavailable(format!("failed to write the identity: {error}")))?;
        tracing::info!(cell, members = members.len(), "forming a cell");
        match members.len() {
            1 => self.consensus.form(members).await,
            _ => self.finish_forming().await,
        }
    }

    /// Sends the cell's secret to the other members, and starts the first election when all of them have it. Until then
    /// no entry exists, so a node that was interrupted can start again here.
    async fn finish_forming(&self) -> Result<(), Failure> {
        let own = self.home.identity();
        let context = self.consensus.peer_context(own.clone());
        let mut waiting = own.founding.clone();
        waiting.remove(&own.node_id);
        let mut logged = None::<Instant>;
        while let Some((&node_id, member)) = waiting.first_key_value() {
            match join(&context, node_id, member).await {
                Ok(()) => drop(waiting.remove(&node_id)),
                Err(why) => {
                    if logged.is_none_or(|logged| logged.elapsed() > LOG_INTERVAL) {
                        logged = Some(Instant::now());
                        tracing::info!(
                            "waiting for node {node_id} at {} to join the cell: {why}",
                            member.peer
                        );
                    }
                    tokio::time::sleep(HELLO_INTERVAL).await;
                }
            }
        }
        match own.founding.is_empty() {
            true => Ok(()),
            false => self.consensus.form(own.founding).await,
        }
    }

    async fn hello_all(&self) -> Vec<(u64, String, Result<PeerInfo, String>)> {
        let own = self.home.identity();
        let others = self.configured.iter().filter(|(id, _)| **id != own.node_id);
        let context = self.consensus.peer_context(own.clone());
        join_all(others.map(|(id, address)| {
            let context = &context;
            async move { (*id, address.clone(), hello(context, address).await) }
        }))
        .await
    }

    /// Evaluates the answers of the other nodes, for a node that belongs to no cell yet.
    fn evaluate(
        &self,
        answers: &[(u64, String, Result<PeerInfo, String>)],
    ) -> Result<Discovery, CellMismatch> {
        let own = self.home.identity();
        let mut others = self.configured.clone();
        others.remove(&own.node_id);
        let mut present = BTreeMap::new();
        let mut missing = Vec::new();
        let mut other_cell = None;
        for (id, address, answer) in answers {
            let peer = match answer {
                Ok(peer) => peer,
                Err(why) => {
                    missing.push(format!("node {id} at {address} ({why})"));
                    continue;
                }
            };
            check_node_id(*id, address, peer)?;
            let Some(cell) = &peer.cell else {
                let theirs = peer.members.iter().map(|(id, member)| (*id, member.peer.clone()));
                let theirs: BTreeMap<u64, String> = theirs.collect();
                // The others form a cell without this node, which will be added to it afterwards.
                if theirs == others {
                    missing.push(format!("node {id} at {address} (its cell is not formed yet)"));
                    continue;
                }
                if theirs != self.configured {
                    return Err(CellMismatch::OtherList {
                        own: list(&self.configured),
                        theirs: list(&theirs),
                        node_id: *id,
                        address: address.clone(),
                    });
                }
                present.insert(*id, peer.member.clone());
                continue;
            };
            match peer.standing {
                Standing::Member => return Ok(Discovery::Member),
                Standing::OtherFolder => {
                    return Err(CellMismatch::LostData {
                        cell: cell.clone(),
                        node_id: own.node_id,
                        address: peer.member.client.clone(),
                        own: self.own.client.clone(),
                    });
                }
                Standing::NotAMember | Standing::Unspecified => other_cell = Some(peer.member.client.clone()),
            }
        }
        Ok(match other_cell {
            Some(address) => Discovery::NotAMember { address },
            None if missing.is_empty() => Discovery::AllPresent(present),
            None => Discovery::Incomplete(missing),
        })
    }

    /// Checks `--cell` on a node with data. It may be empty, list the current members of the cell, or list those with
    /// which the folder was first used, although members have changed since then.
    async fn check_list(&self) -> Result<(), CellMismatch> {
        let own = self.home.identity();
        if self.configured.len() <= 1 || self.configured == own.configured {
            return Ok(());
        }
        let known: Vec<_> =
            self.consensus.status().members.into_iter().map(|m| (m.node_id, m.member)).collect();
        if known.is_empty() || matches_members(&self.configured, &known) {
            return Ok(());
        }
        // The node may have missed membership changes: it asks the others.
        let answers = self.hello_all().await;
        let mut peers = answers.iter().filter_map(|(_, _, answer)| answer.as_ref().ok());
        if peers.any(|peer| {
            peer.cell.as_ref() == Some(&own.cell) && matches_members(&self.configured, &peer.members)
        }) {
            return Ok(());
        }
        let members = known.into_iter().map(|(id, member)| (id, member.client)).collect();
        Err(CellMismatch::OtherMembers {
            cell: own.cell,
            members: list(&members),
            configured: list(&self.configured),
        })
    }

    /// Asks the other nodes, until all have answered once, whether they belong to this cell. For a node with data. Returns
    /// if so many do not that the rest is no majority. Fewer mismatches are only logged: one node with a wrong folder
    /// must not bring down the others.
    pub(crate) async fn check_others(&self) -> CellMismatch {
        let own = self.home.identity();
        let mut unknown = self.configured.clone();
        unknown.remove(&own.node_id);
        let mut mismatched = BTreeMap::new();
        loop {
            for (id, address, answer) in self.hello_all().await {
                let Ok(peer) = answer else { continue };
                unknown.remove(&id);
                let Err(mismatch) = self.check_peer(id, &address, &peer) else {
                    mismatched.remove(&id);
                    continue;
                };
                let fitting =
                    self.configured.len() - mismatched.len() - usize::from(!mismatched.contains_key(&id));
                if fitting <= self.configured.len() / 2 {
                    return mismatch;
                }
                if mismatched.insert(id, mismatch.clone()).is_none() {
                    tracing::error!("a node in --cell does not match this cell: {mismatch}");
                }
            }
            if unknown.is_empty() && mismatched.is_empty() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    fn check_peer(&self, id: u64, address: &str, peer: &PeerInfo) -> Result<(), CellMismatch> {
        check_node_id(id, address, peer)?;
        match (self.home.cell(), &peer.cell) {
            (Some(own), Some(theirs)) if own != *theirs => Err(CellMismatch::OtherCell {
                own,
                theirs: theirs.clone(),
                node_id: id,
                address: address.to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

/// Result of a round of hello on a node without a cell.
enum Discovery {
    /// All nodes have answered, and none belongs to a cell.
    AllPresent(BTreeMap<u64, Member>),
    /// There is a cell, and this node is a member.
    Member,
    /// There is a cell, and this node is not a member.
    NotAMember { address: String },
    /// Some nodes have not answered, or their cell is not formed yet.
    Incomplete(Vec<String>),
}

fn check_node_id(expected: u64, address: &str, peer: &PeerInfo) -> Result<(), CellMismatch> {
    if peer.node_id == expected {
        return Ok(());
    }
    Err(CellMismatch::OtherNode { expected, found: peer.node_id, address: address.to_owned() })
}

/// Reports whether the list of `--cell` names exactly these members.
fn matches_members(configured: &BTreeMap<u64, String>, members: &[(u64, Member)]) -> bool {
    configured.len() == members.len()
        && members.iter().all(|(id, member)| {
            configured.get(id).is_some_and(|address| *address == member.client || *address == member.peer)
        })
}

fn list(members: &BTreeMap<u64, String>) -> String {
    members.iter().map(|(id, address)| format!("{id}={address}")).collect::<Vec<_>>().join(",")
}
