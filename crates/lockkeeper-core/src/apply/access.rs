//! Commands of administrators: changes of rules, tokens and quotas, and notes in the audit trail.

use smol_str::SmolStr;

use crate::access::AccessChange;
use crate::effect::{Answer, Reply};
use crate::limits;
use crate::table::LockTable;

impl LockTable {
    pub(crate) fn change_access(&mut self, by: &SmolStr, change: &AccessChange) -> Answer {
        limits::check_length("identity", by.len(), limits::IDENTITY_BYTES_MAX)?;
        if let AccessChange::SetStateBytes { bytes } = change {
            self.set_state_bytes_max(*bytes)?;
        }
        let counted = self.access.counts();
        self.access.change(self.now, change)?;
        if counted != self.access.counts() {
            self.restart_counting();
        }
        Ok(Reply::Done)
    }
}

/// The history records the note; the table itself does not change.
pub(crate) fn audit_note(by: &SmolStr, text: &SmolStr) -> Answer {
    limits::check_length("identity", by.len(), limits::IDENTITY_BYTES_MAX)?;
    limits::check_length("note", text.len(), limits::REASON_BYTES_MAX)?;
    Ok(Reply::Done)
}

#[cfg(feature = "next-version")]
impl LockTable {
    /// Like [`audit_note`], for cells whose version has this command.
    pub(crate) fn next_version_note(&self, text: &SmolStr) -> Answer {
        use crate::refusal::Refusal;
        use crate::version::CellVersion;

        if self.cell_version() < CellVersion::NEXT {
            return Err(Refusal::invalid(format!(
                "this needs cell version {}, and the cell has version {}: upgrade all members first",
                CellVersion::NEXT,
                self.cell_version()
            )));
        }
        audit_note(&SmolStr::default(), text)
    }
}
