//! Settings of a node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::formation::versions::Versions;
use crate::raft::Timing;
use crate::raft::log::{Disk, LogConfig};
use crate::raft::snapshot::COMMANDS_BETWEEN;
use crate::security::Security;

/// See [`NodeConfig::entries_behind_snapshot`].
pub const ENTRIES_BEHIND_SNAPSHOT: u64 = 10_000;
/// See [`NodeConfig::slow_acquire`].
const SLOW_ACQUIRE: Duration = Duration::from_secs(10);

/// Settings of a node. The defaults make it a cell of one node.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Data folder. `None`: all data is in memory and is lost when the process ends.
    pub data_dir: Option<PathBuf>,
    /// ID of the node. `None`: the one that the folder belongs to, or 1.
    pub node_id: Option<u64>,
    /// Members of the cell with their addresses, by ID. Empty: only this node.
    pub members: BTreeMap<u64, String>,
    /// Listen address for clients, and for the other members unless `peer_listen` is set. `None`: no port.
    pub listen: Option<String>,
    /// Separate listen address for the other members.
    pub peer_listen: Option<String>,
    /// Timing of heartbeats and elections.
    pub timing: Timing,
    /// Settings of the log.
    pub log: LogConfig,
    /// Disk of the log instead of the data folder, for tests with faulty disks.
    pub log_disk: Option<Arc<dyn Disk>>,
    /// Minimum number of commands between two snapshots.
    pub commands_between_snapshots: u64,
    /// Number of log entries that are kept after a snapshot covers them, for followers that lag only a little.
    pub entries_behind_snapshot: u64,
    /// An acquire that was granted after a wait of at least this length is logged. Zero: none is.
    pub slow_acquire: Duration,
    /// Authentication and TLS.
    pub security: Security,
    /// Versions that the node supports, more than the released ones in some tests.
    pub versions: Versions,
}

impl NodeConfig {
    /// Returns the settings of a durable node with this data folder.
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

    /// Returns the settings of a node in memory.
    pub fn in_memory() -> NodeConfig {
        NodeConfig { data_dir: None, log: LogConfig::in_memory(), ..NodeConfig::durable("") }
    }
}
