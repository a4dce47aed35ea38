//! What a node has to be told.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::raft::Timing;
use crate::raft::log::{Disk, LogConfig};
use crate::raft::snapshot::COMMANDS_BETWEEN;
use crate::security::Security;
use crate::versions::Versions;

/// See [`NodeConfig::entries_behind_snapshot`].
pub const ENTRIES_BEHIND_SNAPSHOT: u64 = 10_000;
/// See [`NodeConfig::slow_acquire`].
const SLOW_ACQUIRE: Duration = Duration::from_secs(10);

/// The settings of a node. The defaults give a cell of one.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Where everything is kept; `None` keeps it in memory, and it is gone with the process.
    pub data_dir: Option<PathBuf>,
    /// Which node of the cell this is; `None` takes the one that the folder belongs to, or 1.
    pub node_id: Option<u64>,
    /// The members of the cell by id, with the addresses at which they are reached. Empty: this node alone.
    pub members: BTreeMap<u64, String>,
    /// Where to listen for clients, and for the other members too unless `peer_listen` is given. `None`: nowhere.
    pub listen: Option<String>,
    /// Where to listen for the other members alone.
    pub peer_listen: Option<String>,
    /// How fast an absent leader is noticed.
    pub timing: Timing,
    /// The log on disk.
    pub log: LogConfig,
    /// Where the log is, if not in the folder: tests have disks that forget and tear.
    pub log_disk: Option<Arc<dyn Disk>>,
    /// A snapshot is taken after this many commands.
    pub commands_between_snapshots: u64,
    /// Log entries that are kept behind a snapshot, for followers that are only a little late.
    pub entries_behind_snapshot: u64,
    /// A request that was granted after a wait of this length is worth a line in the log; zero: none is.
    pub slow_acquire: Duration,
    /// Who may come in.
    pub security: Security,
    /// Which versions it supports; tests have nodes that support more.
    pub versions: Versions,
}

impl NodeConfig {
    /// Durable, in this folder.
    pub fn durable(data_dir: impl Into<PathBuf>) -> NodeConfig {
        NodeConfig {
            data_dir: Some(data_dir.into()),
            node_id: None,
            members: BTreeMap::new(),
            listen: None,
            peer_listen: None,
            timing: Timing::default(),
            log: LogConfig::default(),
            log_disk: None,
            commands_between_snapshots: COMMANDS_BETWEEN,
            entries_behind_snapshot: ENTRIES_BEHIND_SNAPSHOT,
            slow_acquire: SLOW_ACQUIRE,
            security: Security::default(),
            versions: Versions::RELEASED,
        }
    }

    /// In memory.
    pub fn in_memory() -> NodeConfig {
        NodeConfig { data_dir: None, log: LogConfig::in_memory(), ..NodeConfig::durable("") }
    }
}
