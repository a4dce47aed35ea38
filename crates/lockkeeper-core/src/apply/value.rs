//! Writes and deletes values. The cell's values are a gate: a stale token is refused here.

use std::sync::Arc;

use smol_str::SmolStr;

use crate::bounds::bounds;
use crate::command::Fence;
use crate::effect::{Answer, Reply};
use crate::id::Token;
use crate::limits;
use crate::mutation::{self, Mutation};
use crate::quota::Counted;
use crate::refusal::Refusal;
use crate::table::LockTable;
use crate::value::StoredValue;
use crate::weighed::RECORD;

impl LockTable {
    pub(crate) fn put_value(
        &mut self,
        key: &SmolStr,
        value: &Arc<[u8]>,
        fence: Option<&Fence>,
        if_version: Option<u64>,
    ) -> Answer {
        limits::check_name("key", key)?;
        limits::check_length("value", value.len(), limits::VALUE_BYTES_MAX)?;
        let highest = self.check_write(key, fence, if_version)?;
        let version = match self.values.get(key) {
            // A value that does not grow can be written even to a full table.
            Some(old) => {
                if value.len() > old.bytes.len() {
                    self.check_state_bytes((value.len() - old.bytes.len()) as u64)?;
                }
                old.version + 1
            }
            None if self.values.len() >= bounds().values => {
                return Err(Refusal::limit(format!(
                    "the cell has {} values, its limit: remove some",
                    bounds().values
                )));
            }
            None => {
                self.check_state_bytes(RECORD + (key.len() + value.len()) as u64)?;
                self.access.check_value(key)?;
                self.access.add(key, Counted::Value);
                self.removed_version + 1
            }
        };
        self.values.insert(key.clone(), StoredValue { bytes: value.clone(), version, token: highest });
        Ok(Reply::Put { version })
    }

    pub(crate) fn delete_value(
        &mut self,
        key: &SmolStr,
        fence: Option<&Fence>,
        if_version: Option<u64>,
    ) -> Answer {
        limits::check_name("key", key)?;
        self.check_write(key, fence, if_version)?;
        if let Some(removed) = self.values.remove(key) {
            self.access.remove(key, Counted::Value);
            self.removed_version = self.removed_version.max(removed.version);
        }
        Ok(Reply::Done)
    }

    /// Whether the write may happen, and the highest token that the value has seen if it does.
    pub(crate) fn check_write(
        &self,
        key: &SmolStr,
        fence: Option<&Fence>,
        if_version: Option<u64>,
    ) -> Result<Token, Refusal> {
        let old = self.values.get(key);
        let mut highest = old.map_or(Token::default(), |old| old.token);
        if let Some(fence) = fence.filter(|_| !mutation::is_on(Mutation::StaleWrite)) {
            // Both checks are needed: the lock's last token refuses a stale holder even before the new one
            // has written; the value's highest token refuses it when the key is written under several locks.
            let last_token = self.last_token_of(&fence.lock);
            let never_granted = fence.token == Token::default();
            if never_granted || fence.token != last_token || fence.token < highest {
                return Err(Refusal::StaleToken { last_token: last_token.max(highest) });
            }
            highest = fence.token;
        }
        let version = old.map_or(0, |old| old.version);
        if if_version.is_some_and(|expected| expected != version) {
            return Err(Refusal::VersionMismatch { version });
        }
        Ok(highest)
    }
}
