//! The version of a cell: which commands it accepts, and by which rules they are applied.
//!
//! During a rolling upgrade the nodes of a cell run different binaries, but must apply every entry alike. So a new command
//! or a changed rule of `apply` is enabled by a version in the replicated state: the leader raises it when every member
//! supports it, and it is never lowered. Budgets and other constants that `apply` depends on belong to the version too.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::effect::{Answer, Reply};
use crate::table::{LockTable, TableError};

/// A version of the rules of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CellVersion(pub u32);

impl CellVersion {
    /// The version of a new cell, and the highest that this build supports.
    pub const RELEASED: CellVersion = CellVersion(1);
    /// A version of test builds, to test upgrades.
    #[cfg(feature = "next-version")]
    pub const NEXT: CellVersion = CellVersion(2);
}

impl Default for CellVersion {
    fn default() -> CellVersion {
        CellVersion::RELEASED
    }
}

impl fmt::Display for CellVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl LockTable {
    /// The version of the cell.
    pub fn cell_version(&self) -> CellVersion {
        self.cell_version
    }

    /// Sets the highest version that this node supports. Not part of the replicated state.
    pub fn support(&mut self, highest: CellVersion) -> Result<(), TableError> {
        check_supported(self.cell_version, highest)?;
        self.supported = highest;
        Ok(())
    }

    /// The highest version that this node supports.
    pub fn supported(&self) -> CellVersion {
        self.supported
    }

    pub(crate) fn raise_cell_version(&mut self, to: CellVersion) -> Answer {
        self.cell_version = self.cell_version.max(to);
        Ok(Reply::Done)
    }
}

pub(crate) fn check_supported(needed: CellVersion, supported: CellVersion) -> Result<(), TableError> {
    match needed <= supported {
        true => Ok(()),
        false => Err(TableError::NewerVersion { needed, supported }),
    }
}
