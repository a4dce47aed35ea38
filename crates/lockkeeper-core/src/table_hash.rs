//! The rolling hash of the table, by which nodes detect disagreement (S13).
//!
//! After each entry the new hash covers the previous hash, the answers and effects of the entry, the counters and record
//! counts of the table, and the next few records. So a different answer, a missing record or a wrong counter shows at
//! once, and a wrong record that is not used shows when its turn comes. Once the hashes of two tables differ, they stay
//! different.
//!
//! The input of the hash is a rule of `apply`: it changes only with the version of the cell.

use std::ops::Bound;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::effect::{Answer, Effect};
use crate::id::{LockName, RequestId, SessionId, Ticket, Token};
use crate::scope::ScopeNo;
use crate::table::LockTable;

/// The version of the rules of the hash. Part of every hash.
pub const TABLE_HASH_RULES: u64 = 1;
/// Records of the table that are hashed with each entry.
const RECORDS_PER_ENTRY: usize = 8;
/// Hashing of records stops after this many bytes in an entry: values may be large.
const BYTES_PER_ENTRY: usize = 8 * 1024;

/// The position in the table up to which records have been hashed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Cursor {
    Sessions(Option<SessionId>),
    Locks(Option<LockName>),
    Grants(Option<(SessionId, Token)>),
    Waiters(Option<Ticket>),
    Requests(Option<(SessionId, RequestId)>),
    Values(Option<SmolStr>),
    Scopes(Option<ScopeNo>),
    Limiters(Option<SmolStr>),
    Rules(Option<(SmolStr, SmolStr)>),
    AccessTokens(Option<SmolStr>),
}

/// The number of kinds of records.
const KINDS: usize = 10;

impl Default for Cursor {
    fn default() -> Cursor {
        Cursor::Sessions(None)
    }
}

impl Cursor {
    /// The start of the next kind.
    fn next_kind(&self) -> Cursor {
        match self {
            Cursor::Sessions(_) => Cursor::Locks(None),
            Cursor::Locks(_) => Cursor::Grants(None),
            Cursor::Grants(_) => Cursor::Waiters(None),
            Cursor::Waiters(_) => Cursor::Requests(None),
            Cursor::Requests(_) => Cursor::Values(None),
            Cursor::Values(_) => Cursor::Scopes(None),
            Cursor::Scopes(_) => Cursor::Limiters(None),
            Cursor::Limiters(_) => Cursor::Rules(None),
            Cursor::Rules(_) => Cursor::AccessTokens(None),
            Cursor::AccessTokens(_) => Cursor::Sessions(None),
        }
    }
}

#[cfg(feature = "mutations")]
impl LockTable {
    /// Makes this table differ harmlessly from that of other nodes. For tests.
    pub fn make_different(&mut self) {
        self.free_next += 1;
    }

    /// Flips a bit in a value, as a memory error would.
    pub fn make_value_different(&mut self, key: &str) {
        let Some(value) = self.values.get_mut(key) else { return };
        let mut bytes = value.bytes.to_vec();
        bytes.iter_mut().take(1).for_each(|byte| *byte ^= 1);
        value.bytes = bytes.into();
    }
}

impl LockTable {
    /// The hash of the table after its last entry: equal on all nodes that have applied the same entries.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Computes the next hash after an entry is applied. Never inlined, so that profiles show its cost.
    #[inline(never)]
    pub(crate) fn chain_hash(&mut self, answers: &[Answer], effects: &[Effect]) {
        let mut digest = Digest::new(self.hash);
        digest.put_words(&[TABLE_HASH_RULES, self.cell_version.0.into(), self.applied, self.now.0]);
        digest.put_words(&[self.last_token.0, self.last_ticket.0, self.forgotten.0, self.removed_version]);
        digest.put_words(&[self.ending_next, self.free_next, self.scopes.next, self.scopes.idle_next]);
        digest.put_words(&[self.state_bytes(), self.state_bytes_max()]);
        let lengths = [
            self.sessions.len(),
            self.locks.len(),
            self.grants.len(),
            self.waiters.len(),
            self.queues.len(),
            self.waits.len(),
            self.requests.len(),
            self.settled.len(),
            self.timers.len(),
            self.ending.len(),
            self.free.len(),
            self.values.len(),
            self.scopes.all.len(),
            self.limiters.len(),
            self.backlog.tasks.len(),
        ];
        digest.put_words(&lengths.map(|length| length as u64));
        let mut digest = digest.put(answers).put(effects);
        let mut budget = Budget { records: RECORDS_PER_ENTRY, bytes: BYTES_PER_ENTRY };
        let mut cursor = std::mem::take(&mut self.cursor);
        for _ in 0..KINDS {
            (digest, cursor) = self.hash_records(cursor, digest, &mut budget);
            if budget.is_spent() {
                break;
            }
        }
        self.cursor = cursor;
        self.hash = digest.finish();
    }

    /// Hashes records from the cursor on. Returns the next cursor.
    fn hash_records(&self, cursor: Cursor, mut digest: Digest, budget: &mut Budget) -> (Digest, Cursor) {
        let next_kind = cursor.next_kind();
        let last = match cursor {
            Cursor::Sessions(after) => budget
                .walk(&self.sessions, after, &mut digest, |digest, id, session| {
                    digest.put(&(id, session, session.grants, session.waits))
                })
                .map(Cursor::Sessions),
            Cursor::Locks(after) => budget
                .walk(&self.locks, after, &mut digest, |digest, name, lock| {
                    let state = (lock.capacity, lock.used, lock.waiting, lock.closed_until, lock.freed);
                    let digest = digest.put(&(name, state, lock.last_token));
                    lock.holders.iter().fold(digest, |digest, holder| digest.put(&holder))
                })
                .map(Cursor::Locks),
            Cursor::Grants(after) => {
                budget.walk(&self.grants, after, &mut digest, put_both).map(Cursor::Grants)
            }
            Cursor::Waiters(after) => {
                budget.walk(&self.waiters, after, &mut digest, put_both).map(Cursor::Waiters)
            }
            Cursor::Requests(after) => {
                budget.walk(&self.requests, after, &mut digest, put_both).map(Cursor::Requests)
            }
            Cursor::Values(after) => {
                budget.walk(&self.values, after, &mut digest, put_both).map(Cursor::Values)
            }
            Cursor::Scopes(after) => {
                budget.walk(&self.scopes.all, after, &mut digest, put_both).map(Cursor::Scopes)
            }
            Cursor::Limiters(after) => {
                budget.walk(&self.limiters, after, &mut digest, put_both).map(Cursor::Limiters)
            }
            Cursor::Rules(after) => {
                budget.walk(&self.access.rules, after, &mut digest, put_both).map(Cursor::Rules)
            }
            Cursor::AccessTokens(after) => {
                budget.walk(&self.access.tokens, after, &mut digest, put_both).map(Cursor::AccessTokens)
            }
        };
        (digest, last.unwrap_or(next_kind))
    }
}

fn put_both<K: Serialize, V: Serialize>(digest: Digest, key: &K, value: &V) -> Digest {
    digest.put(key).put(value)
}

/// The remaining records and bytes to hash with an entry.
struct Budget {
    records: usize,
    bytes: usize,
}

impl Budget {
    fn is_spent(&self) -> bool {
        self.records == 0 || self.bytes == 0
    }

    /// Hashes the records after a key until the budget is spent. Returns the last key for the cursor; `None` at the end of
    /// the map.
    fn walk<K: Ord + Clone, V>(
        &mut self,
        map: &OrdMap<K, V>,
        after: Option<K>,
        digest: &mut Digest,
        put: impl Fn(Digest, &K, &V) -> Digest,
    ) -> Option<Option<K>> {
        let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        for (key, value) in map.range::<_, K>((from, Bound::Unbounded)) {
            let before = digest.length;
            *digest = put(std::mem::take(digest), key, value);
            self.records -= 1;
            self.bytes = self.bytes.saturating_sub(digest.length.saturating_sub(before) as usize);
            if self.is_spent() {
                return Some(Some(key.clone()));
            }
        }
        None
    }
}

/// A 64-bit hash of serializable values, over their postcard encoding, which is the same on every platform and with every
/// compiler. It detects accidents, not attacks: a collision gains an attacker nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Digest {
    state: u64,
    /// Bytes that are not mixed into the state yet.
    tail: u64,
    tail_bytes: u32,
    length: u64,
}

impl Digest {
    pub(crate) fn new(seed: u64) -> Digest {
        let mut digest = Digest::default();
        digest.mix(seed);
        digest
    }

    fn put_words(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.mix(*word));
    }

    fn put<T: Serialize + ?Sized>(self, value: &T) -> Digest {
        // Postcard can encode everything in the table. If it could not, all nodes would restart the digest alike.
        postcard::serialize_with_flavor(value, self).unwrap_or_default()
    }

    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        while self.tail_bytes != 0 && !bytes.is_empty() {
            self.put_byte(bytes[0]);
            bytes = &bytes[1..];
        }
        let (words, rest) = bytes.as_chunks::<8>();
        self.length += 8 * words.len() as u64;
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.put_byte(*byte));
    }

    fn put_byte(&mut self, byte: u8) {
        self.tail |= u64::from(byte) << (8 * self.tail_bytes);
        self.tail_bytes += 1;
        self.length += 1;
        if self.tail_bytes == 8 {
            let word = std::mem::take(&mut self.tail);
            self.tail_bytes = 0;
            self.mix(word);
        }
    }

    fn mix(&mut self, word: u64) {
        self.state = (self.state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.state ^= self.state >> 29;
    }

    pub(crate) fn finish(mut self) -> u64 {
        let (tail, length) = (self.tail, self.length);
        self.mix(tail);
        self.mix(length);
        self.state = self.state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.state ^ (self.state >> 32)
    }
}

impl postcard::ser_flavors::Flavor for Digest {
    type Output = Digest;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.put_byte(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.put_bytes(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Digest> {
        Ok(self)
    }
}
