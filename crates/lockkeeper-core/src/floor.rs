//! Numbers that a restored table must not issue again: tokens and versions of values (S1).

use crate::id::Token;
use crate::mutation::{self, Mutation};
use crate::refusal::Refusal;
use crate::table::{LockTable, no_token_left};
use crate::value::StoredValue;

impl LockTable {
    /// The highest number that this table has issued, as a token or as the version of a value.
    pub fn highest_number(&self) -> u64 {
        let versions = self.values.iter().map(|(_, value)| value.version);
        versions.fold(self.last_token.0.max(self.removed_version), u64::max)
    }

    /// Raises tokens and versions to a floor after a restore from a backup: every token and version that the table issues
    /// from now on is above it. A value keeps its content and takes the floor as its version, so that no version of the
    /// original cell refers to other content here. Fails if the table has already issued higher numbers, or if the tokens
    /// above the floor do not suffice for the waiters and one more grant.
    pub fn raise_to_floor(&mut self, floor: Token) -> Result<(), Refusal> {
        let highest = self.highest_number();
        if floor.0 < highest {
            return Err(Refusal::invalid(format!(
                "the floor {floor} is below {highest}, the highest token or version that was issued"
            )));
        }
        if floor.0.saturating_add(self.waiters.len() as u64) >= Token::MAX.0 {
            return Err(no_token_left());
        }
        if mutation::is_on(Mutation::RestoreKeepsTokens) {
            return Ok(());
        }
        self.last_token = floor;
        self.removed_version = floor.0;
        let values = std::mem::take(&mut self.values);
        for (key, value) in &values {
            self.values.insert(key.clone(), StoredValue { version: floor.0, ..value.clone() });
        }
        Ok(())
    }
}
