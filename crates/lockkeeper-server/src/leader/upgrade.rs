//! Raises the cell version when every member supports the next one, and records it in the data folder, so that an older
//! binary refuses to start on it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::{CellVersion, Command};

use crate::data_dir::DataDir;
use crate::effects::callers::Caller;
use crate::raft::Consensus;
use crate::raft::network::hello;
use crate::shared::Shared;

/// Interval at which the members are asked for their supported versions, while this node supports a higher version than the
/// cell has.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until the node stops.
pub(crate) async fn run(shared: Arc<Shared>, consensus: Consensus, home: Arc<DataDir>) {
    #[cfg(feature = "next-version")]
    let mut noted = false;
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let (current, supported) = {
            let table = shared.table();
            (table.cell_version(), table.supported())
        };
        if current > home.identity().cell_version
            && let Err(error) = home.remember_cell_version(current)
        {
            tracing::warn!(%error, "failed to write the cell version to the data folder, retrying in a second");
        }
        if shared.leader_term.now().is_err() {
            continue;
        }
        if current < supported
            && let Some(to) = highest_common(&consensus, &home, supported).await
            && to > current
        {
            tracing::info!(%to, "raising the cell version: every member supports it");
            shared.submit(Command::RaiseCellVersion { to }, Caller::Nobody);
        }
        #[cfg(feature = "next-version")]
        if current >= CellVersion::NEXT && !std::mem::replace(&mut noted, true) {
            let text = "a command of the next version".into();
            shared.submit(Command::NextVersionNote { text }, Caller::Nobody);
        }
    }
}

/// Returns the highest version that all members support. `None` if one of them does not answer.
async fn highest_common(consensus: &Consensus, home: &DataDir, own: CellVersion) -> Option<CellVersion> {
    let identity = home.identity();
    let members = consensus.status().members;
    let others = members.iter().filter(|member| member.node_id != identity.node_id);
    let context = consensus.peer_context(identity.clone());
    let answers = join_all(others.map(|other| hello(&context, &other.member.peer)));
    let answers = answers.await.into_iter();
    let answers = answers.filter(|answer| answer.is_ok() || !mutation::is_on(Mutation::VersionRaisedEarly));
    let supported = answers.map(|answer| answer.ok().map(|peer| peer.cell_version_max));
    supported.collect::<Option<Vec<_>>>().map(|all| all.into_iter().fold(own, CellVersion::min))
}

#[cfg(all(test, feature = "next-version", feature = "simulation"))]
mod tests {
    use super::*;
    use crate::formation::versions::Versions;
    use crate::test_cell::{leader, start_cell};

    /// A silent member may be an older binary. The check would notice a leader that ignores silent members.
    #[tokio::test]
    async fn silent_member_supports_no_version() {
        let mut nodes = start_cell(|id, mut config| {
            // One older node, so that the version is not raised before it stops.
            config.versions = if id == 3 { Versions::RELEASED } else { Versions::NEXT };
            config
        })
        .await;
        let leads = leader(&nodes).await;
        let older = nodes.pop().unwrap();
        let asks = if leads == 2 { 0 } else { leads };
        let api = nodes[asks].api();
        let common = async || highest_common(api.consensus(), api.home(), CellVersion::NEXT).await;
        assert_eq!(common().await, Some(CellVersion::RELEASED));
        older.stop().await;
        assert_eq!(common().await, None);
        mutation::put_back(Some(Mutation::VersionRaisedEarly));
        assert_eq!(common().await, Some(CellVersion::NEXT));
        mutation::put_back(None);
    }
}
