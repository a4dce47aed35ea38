//! How a cell comes about: its nodes find each other, and one of them founds it.
//!
//! Nodes that are started with the same `--cell` and empty folders say hello to each other. When all have
//! answered, the one with the lowest id draws the cell's name and its secret, writes down who belongs to it and by which
//! data folder, hands the secret to the others, and starts the first election. That all
//! must be there this once makes sure that a node which comes back with an empty folder cannot help to found a
//! second cell in place of the first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper_api::peer::Standing;
use tokio::time::Instant;

use crate::backup;
use crate::cell_secret::CellSecret;
use crate::data_dir::DataDir;
use crate::failure::Failure;
use crate::raft::Consensus;
use crate::raft::network::{PeerInfo, hello, join};
use crate::raft::types::Member;

/// Between two rounds of hello.
const SAY_AGAIN: Duration = Duration::from_millis(100);
/// Between two rounds of the check whether the others belong to this cell.
const CHECK_AGAIN: Duration = Duration::from_secs(1);
/// How often it is said what the node waits for.
const SAY_WHY_EVERY: Duration = Duration::from_secs(10);

/// A node does not fit into its cell. Each text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// Its data is another cell's.
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
    /// Somebody else is at that address.
    #[error(
        "--cell says that node {expected} is at {address}, but the node there is node {found}: correct --cell or \
         --node-id"
    )]
    OtherNode {
        /// Who should be there.
        expected: u64,
        /// Who is there.
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
    /// The node was started with a list that is not its cell's.
    #[error(
        "this node belongs to cell {cell} with the members {members}, but --cell says {given}: leave out --cell or \
         correct it; members are changed with lockkeeper member add and remove"
    )]
    NotTheMembers {
        /// The cell.
        cell: String,
        /// Its members.
        members: String,
        /// What `--cell` says.
        given: String,
    },
    /// The folder is empty, but the cell knows this node.
    #[error(
        "the cell {cell} knows node {node_id} with another data folder, and this one is empty: bring the old folder \
         back as the node left it (no older copy of it: that one has forgotten its votes); if it is lost, remove the node from the cell (lockkeeper member remove {node_id} --engine \
         lockkeeper://{address}), start it with an empty folder and add it again (lockkeeper member add \
         {node_id}={own} --engine lockkeeper://{address})"
    )]
    LostData {
        /// The cell.
        cell: String,
        /// This node.
        node_id: u64,
        /// A member that can be asked.
        address: String,
        /// The address of this node.
        own: String,
    },
}

/// What a node has to know about itself to find its cell.
pub(crate) struct Formation {
    pub(crate) home: Arc<DataDir>,
    pub(crate) consensus: Consensus,
    /// The members of `--cell` and their addresses, this node among them.
    pub(crate) given: BTreeMap<u64, String>,
    pub(crate) own: Member,
}

impl Formation {
    /// What can be settled without the others, or quickly.
    pub(crate) async fn begin(&self) -> Result<Result<(), Misfit>, Failure> {
        let own = self.home.identity();
        if self.consensus.is_formed().await? {
            if let Err(misfit) = self.check_list().await {
                return Ok(Err(misfit));
            }
        } else if own.founding.len() == 1 {
            // It was cut short after the name was drawn.
            self.consensus.form(own.founding).await?;
        } else if own.cell.is_empty() && self.given.len() == 1 {
            let alone = Member { folder: own.folder, ..self.own.clone() };
            self.found(BTreeMap::from([(own.node_id, alone)])).await?;
        }
        if self.consensus.is_alone() {
            self.consensus.campaign().await?;
        }
        Ok(Ok(()))
    }

    /// Finds the cell, if the node belongs to none yet, and then makes sure that the others belong to the same.
    /// Ends only if they do not.
    pub(crate) async fn run(&self) -> Result<Misfit, Failure> {
        if self.consensus.is_alone() {
            self.tell_address().await?;
        }
        if self.home.cell().is_none()
            && let Err(misfit) = self.find_the_others().await?
        {
            return Ok(misfit);
        }
        if !self.consensus.is_formed().await? {
            self.finish_founding().await?;
        }
        Ok(self.check_neighbours().await)
    }

    /// A cell of one may be started at another address, or come from a backup, which has none.
    async fn tell_address(&self) -> Result<(), Failure> {
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
                    Err(failure) => tracing::debug!(%failure, "the address is not known to the cell yet"),
                }
            }
            tokio::time::sleep(SAY_AGAIN).await;
        }
    }

    async fn find_the_others(&self) -> Result<Result<(), Misfit>, Failure> {
        let own = self.home.identity();
        let mut said = None::<Instant>;
        loop {
            if self.home.cell().is_some() {
                return Ok(Ok(()));
            }
            let answers = self.ask_all().await;
            let found = match self.judge(&answers) {
                Ok(found) => found,
                Err(misfit) => return Ok(Err(misfit)),
            };
            let waits_for = match found {
                Found::Everybody(mut members) if self.given.keys().next() == Some(&own.node_id) => {
                    members.insert(own.node_id, Member { folder: own.folder, ..self.own.clone() });
                    self.found(members).await?;
                    return Ok(Ok(()));
                }
                Found::Everybody(_) => {
                    format!("node {} to found the cell", self.given.keys().next().unwrap_or(&0))
                }
                Found::Known => "the leader of the cell to send the first entries".to_owned(),
                Found::Stranger { address } => format!(
                    "being added to the cell: lockkeeper member add {}={} --engine lockkeeper://{address}",
                    own.node_id, self.own.client
                ),
                Found::Absent(who) => format!(
                    "{}: a cell is formed when all of its nodes are there for the first time",
                    who.join(", ")
                ),
            };
            if said.is_none_or(|said| said.elapsed() > SAY_WHY_EVERY) {
                said = Some(Instant::now());
                tracing::info!("waiting for {waits_for}");
            }
            tokio::time::sleep(SAY_AGAIN).await;
        }
    }

    async fn found(&self, members: BTreeMap<u64, Member>) -> Result<(), Failure> {
        let no_random = |error: std::io::Error| {
            Failure::Unavailable(format!("the system gives no random bytes: {error}"))
        };
        let cell = backup::new_cell().map_err(no_random)?;
        let secret = CellSecret::generate().map_err(no_random)?;
        self.home
            .join(&cell, secret, members.clone())
            .map_err(|error| Failure::Unavailable(format!("the identity cannot be written: {error}")))?;
        tracing::info!(cell, members = members.len(), "founding a cell");
        match members.len() {
            1 => self.consensus.form(members).await,
            _ => self.finish_founding().await,
        }
    }

    /// Hands the cell's secret to the other members, and starts the first election when all of them have it. Until then no
    /// entry exists, so that a founder that is cut short can begin again here.
    async fn finish_founding(&self) -> Result<(), Failure> {
        let own = self.home.identity();
        let contact = self.consensus.contact(own.clone());
        let mut waiting = own.founding.clone();
        waiting.remove(&own.node_id);
        let mut said = None::<Instant>;
        while let Some((&node_id, member)) = waiting.first_key_value() {
            match join(&contact, node_id, member).await {
                Ok(()) => drop(waiting.remove(&node_id)),
                Err(why) => {
                    if said.is_none_or(|said| said.elapsed() > SAY_WHY_EVERY) {
                        said = Some(Instant::now());
                        tracing::info!(
                            "waiting for node {node_id} at {} to join the cell: {why}",
                            member.peer
                        );
                    }
                    tokio::time::sleep(SAY_AGAIN).await;
                }
            }
        }
        match own.founding.is_empty() {
            true => Ok(()),
            false => self.consensus.form(own.founding).await,
        }
    }

    async fn ask_all(&self) -> Vec<(u64, String, Result<PeerInfo, String>)> {
        let own = self.home.identity();
        let others = self.given.iter().filter(|(id, _)| **id != own.node_id);
        let contact = self.consensus.contact(own.clone());
        join_all(others.map(|(id, address)| {
            let contact = &contact;
            async move { (*id, address.clone(), hello(contact, address).await) }
        }))
        .await
    }

    /// What the answers of the others mean for a node that belongs to no cell yet.
    fn judge(&self, answers: &[(u64, String, Result<PeerInfo, String>)]) -> Result<Found, Misfit> {
        let own = self.home.identity();
        let mut others = self.given.clone();
        others.remove(&own.node_id);
        let mut everybody = BTreeMap::new();
        let mut absent = Vec::new();
        let mut stranger = None;
        for (id, address, answer) in answers {
            let peer = match answer {
                Ok(peer) => peer,
                Err(why) => {
                    absent.push(format!("node {id} at {address} ({why})"));
                    continue;
                }
            };
            right_node(*id, address, peer)?;
            let Some(cell) = &peer.cell else {
                let theirs = peer.members.iter().map(|(id, member)| (*id, member.peer.clone()));
                let theirs: BTreeMap<u64, String> = theirs.collect();
                // The others form a cell without this node, which is to be added to it when it is formed.
                if theirs == others {
                    absent.push(format!("node {id} at {address} (its cell is not formed yet)"));
                    continue;
                }
                if theirs != self.given {
                    return Err(Misfit::OtherList {
                        own: list(&self.given),
                        theirs: list(&theirs),
                        node_id: *id,
                        address: address.clone(),
                    });
                }
                everybody.insert(*id, peer.member.clone());
                continue;
            };
            match peer.standing {
                Standing::Member => return Ok(Found::Known),
                Standing::OtherFolder => {
                    return Err(Misfit::LostData {
                        cell: cell.clone(),
                        node_id: own.node_id,
                        address: peer.member.client.clone(),
                        own: self.own.client.clone(),
                    });
                }
                Standing::NotAMember | Standing::Unspecified => stranger = Some(peer.member.client.clone()),
            }
        }
        Ok(match stranger {
            Some(address) => Found::Stranger { address },
            None if absent.is_empty() => Found::Everybody(everybody),
            None => Found::Absent(absent),
        })
    }

    /// A node with data keeps to the members of its cell. `--cell` may be left out, name them as they are now,
    /// or as they were when the folder was first used: members have come and gone since then.
    async fn check_list(&self) -> Result<(), Misfit> {
        let own = self.home.identity();
        if self.given.len() <= 1 || self.given == own.given {
            return Ok(());
        }
        let known: Vec<_> =
            self.consensus.status().members.into_iter().map(|m| (m.node_id, m.member)).collect();
        if known.is_empty() || names(&self.given, &known) {
            return Ok(());
        }
        // It may have been away while members came and went: the others know.
        let answers = self.ask_all().await;
        let mut peers = answers.iter().filter_map(|(_, _, answer)| answer.as_ref().ok());
        if peers.any(|peer| peer.cell.as_ref() == Some(&own.cell) && names(&self.given, &peer.members)) {
            return Ok(());
        }
        let members = known.into_iter().map(|(id, member)| (id, member.client)).collect();
        Err(Misfit::NotTheMembers { cell: own.cell, members: list(&members), given: list(&self.given) })
    }

    /// For a node with data: asks the others until all have answered once, whether this is their cell. Ends if so many
    /// say no that the rest cannot be a majority; fewer are strangers among the members of this cell, and only
    /// reported: one node with a wrong folder must not bring down those with the right ones.
    pub(crate) async fn check_neighbours(&self) -> Misfit {
        let own = self.home.identity();
        let mut unknown = self.given.clone();
        unknown.remove(&own.node_id);
        let mut strangers = BTreeMap::new();
        loop {
            for (id, address, answer) in self.ask_all().await {
                let Ok(peer) = answer else { continue };
                unknown.remove(&id);
                let Err(misfit) = self.fits(id, &address, &peer) else {
                    strangers.remove(&id);
                    continue;
                };
                let fitting = self.given.len() - strangers.len() - usize::from(!strangers.contains_key(&id));
                if fitting <= self.given.len() / 2 {
                    return misfit;
                }
                if strangers.insert(id, misfit.clone()).is_none() {
                    tracing::error!("a member does not fit: {misfit}");
                }
            }
            if unknown.is_empty() && strangers.is_empty() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(CHECK_AGAIN).await;
        }
    }

    fn fits(&self, id: u64, address: &str, peer: &PeerInfo) -> Result<(), Misfit> {
        right_node(id, address, peer)?;
        match (self.home.cell(), &peer.cell) {
            (Some(own), Some(theirs)) if own != *theirs => Err(Misfit::OtherCell {
                own,
                theirs: theirs.clone(),
                node_id: id,
                address: address.to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

/// What a node without a cell has found.
enum Found {
    /// All are there, and none belongs to a cell.
    Everybody(BTreeMap<u64, Member>),
    /// There is a cell, and it knows this node.
    Known,
    /// There is a cell, and it does not know this node.
    Stranger { address: String },
    /// Some have not answered.
    Absent(Vec<String>),
}

fn right_node(expected: u64, address: &str, peer: &PeerInfo) -> Result<(), Misfit> {
    if peer.node_id == expected {
        return Ok(());
    }
    Err(Misfit::OtherNode { expected, found: peer.node_id, address: address.to_owned() })
}

/// Whether the list of `--cell` names just these members.
fn names(given: &BTreeMap<u64, String>, members: &[(u64, Member)]) -> bool {
    given.len() == members.len()
        && members.iter().all(|(id, member)| {
            given.get(id).is_some_and(|address| *address == member.client || *address == member.peer)
        })
}

fn list(members: &BTreeMap<u64, String>) -> String {
    members.iter().map(|(id, address)| format!("{id}={address}")).collect::<Vec<_>>().join(",")
}
