//! Raises the cell version when every member supports the next one, and remembers it in the data folder, so that an older
//! binary refuses to start on it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper_core::{CellVersion, Command};

use crate::callers::Caller;
use crate::data_dir::DataDir;
use crate::raft::Consensus;
use crate::raft::network::hello;
use crate::shared::Shared;

/// How often the members are asked for the versions that they support. Only while this node supports a higher version than
/// the cell has.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Runs until the node stops.
pub(crate) async fn run(shared: Arc<Shared>, consensus: Consensus, home: Arc<DataDir>) {
    #[cfg(feature = "next-version")]
    let mut noted = false;
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        let (current, supported) = {
            let table = shared.table();
            (table.cell_version(), table.supported())
        };
        if current > home.identity().cell_version
            && let Err(error) = home.remember_cell_version(current)
        {
            tracing::warn!(%error, "failed to write the cell version to the data folder; trying again in a second");
        }
        if shared.leader_term.now().is_err() {
            continue;
        }
        if current < supported
            && let Some(to) = highest_common(&consensus, &home, supported).await
            && to > current
        {
            tracing::info!(%to, "every member supports it: raising the cell version");
            shared.submit(Command::RaiseCellVersion { to }, Caller::Nobody);
        }
        #[cfg(feature = "next-version")]
        if current >= CellVersion::NEXT && !std::mem::replace(&mut noted, true) {
            let text = "a command of the next version".into();
            shared.submit(Command::NextVersionNote { text }, Caller::Nobody);
        }
    }
}

/// The highest version that all members support; `None` if one of them does not answer.
async fn highest_common(consensus: &Consensus, home: &DataDir, own: CellVersion) -> Option<CellVersion> {
    let identity = home.identity();
    let members = consensus.status().members;
    let others = members.iter().filter(|member| member.node_id != identity.node_id);
    let contact = consensus.contact(identity.clone());
    let answers = join_all(others.map(|other| hello(&contact, &other.member.peer)));
    let supported = answers.await.into_iter().map(|answer| answer.ok().map(|peer| peer.cell_version_max));
    supported.collect::<Option<Vec<_>>>().map(|all| all.into_iter().fold(own, CellVersion::min))
}
