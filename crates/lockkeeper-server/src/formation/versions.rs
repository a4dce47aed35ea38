//! Versions that a node supports: of the messages between members, and of the cell's rules. docs/upgrading.md describes how
//! a cell is upgraded node by node.

use lockkeeper_core::CellVersion;

/// Versions that a node supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// Oldest format of messages between members.
    pub format_min: u32,
    /// Newest format of messages between members.
    pub format_max: u32,
    /// Highest cell version.
    pub cell: CellVersion,
}

impl Versions {
    /// Versions of this build.
    pub const RELEASED: Versions = Versions { format_min: 1, format_max: 1, cell: CellVersion::RELEASED };
    /// Versions that test builds can be set to.
    #[cfg(feature = "next-version")]
    pub const NEXT: Versions = Versions { format_min: 1, format_max: 2, cell: CellVersion::NEXT };

    /// Returns the newest format that both sides support.
    pub fn common_format(self, other_min: u32, other_max: u32) -> Option<u32> {
        let newest = self.format_max.min(other_max);
        (newest >= self.format_min.max(other_min)).then_some(newest)
    }

    /// Returns the error for two nodes without a common format.
    pub(crate) fn no_common_format(self, other_min: u32, other_max: u32) -> String {
        format!(
            "the member supports message formats {other_min} to {other_max}, this node {} to {}: upgrade in smaller steps, so that \
             both nodes share a format",
            self.format_min, self.format_max
        )
    }

    /// Reports whether messages in this format can be read.
    pub fn reads(self, format: u32) -> bool {
        (self.format_min..=self.format_max).contains(&format)
    }
}

impl Default for Versions {
    fn default() -> Versions {
        Versions::RELEASED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_use_the_newest_format_that_both_support() {
        let versions = |format_min, format_max| Versions { format_min, format_max, ..Versions::RELEASED };
        assert_eq!(versions(1, 2).common_format(1, 1), Some(1));
        assert_eq!(versions(1, 1).common_format(1, 2), Some(1));
        assert_eq!(versions(1, 3).common_format(2, 4), Some(3));
        assert_eq!(versions(1, 2).common_format(3, 4), None);
        assert_eq!(versions(3, 4).common_format(1, 2), None);
        assert!(versions(2, 3).reads(2) && versions(2, 3).reads(3));
        assert!(!versions(2, 3).reads(1) && !versions(2, 3).reads(4));
    }
}
