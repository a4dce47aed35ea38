//! Which versions a node supports: of the messages between members, and of the cell's rules. docs/upgrading.md tells how a
//! cell is upgraded node by node.

use lockkeeper_core::CellVersion;

/// The versions that a node supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The oldest format of messages between members.
    pub format_min: u32,
    /// The newest format of messages between members.
    pub format_max: u32,
    /// The highest cell version.
    pub cell: CellVersion,
}

impl Versions {
    /// What this build supports.
    pub const RELEASED: Versions = Versions { format_min: 1, format_max: 1, cell: CellVersion::RELEASED };
    /// What test builds support if they are told to.
    #[cfg(feature = "next-version")]
    pub const NEXT: Versions = Versions { format_min: 1, format_max: 2, cell: CellVersion::NEXT };

    /// The newest format that both sides know.
    pub fn common_format(self, other_min: u32, other_max: u32) -> Option<u32> {
        let newest = self.format_max.min(other_max);
        (newest >= self.format_min.max(other_min)).then_some(newest)
    }

    /// Why two nodes without a common format cannot speak with each other.
    pub(crate) fn no_common_format(self, other_min: u32, other_max: u32) -> String {
        format!(
            "the member supports message formats {other_min} to {other_max}, this node {} to {}: upgrade in smaller steps, so that \
             both know one format",
            self.format_min, self.format_max
        )
    }

    /// Whether messages in this format can be read.
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
    fn members_speak_the_newest_format_that_both_know() {
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
