//! Snapshots: the whole table as bytes, and back. Written in chunks, so that a million locks need neither a pause nor a
//! second copy in memory.
//!
//! ```text
//! "LKTABLE1"   chunk   chunk   ...   last chunk
//! chunk = length (u32 LE), CRC-32 of all payloads so far (u32 LE), payload (postcard)
//! ```
//! The CRC continues from chunk to chunk, so chunks of other snapshots and reordered chunks are detected too. The first
//! record is the head with the number of records, and the last one repeats that number, so truncation is detected.
//! Indexes are not written but rebuilt.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::access::AccessRecord;
use crate::effect::SessionEnd;
use crate::history::HistoryRecord;
use crate::id::{CellTime, LockName, RequestId, SessionId, Ticket, Token};
use crate::lock::{Held, Lock};
use crate::mutation::{self, Mutation};
use crate::queue::Waiter;
use crate::quota::Counting;
use crate::reads;
use crate::scope::{Scope, ScopeNo, scope_of};
use crate::session::{Remembered, Session};
use crate::table::{LockTable, Timer};
use crate::table_hash::{Cursor, Digest};
use crate::value::StoredValue;
use crate::version::CellVersion;
use crate::work::Task;

const MAGIC: &[u8; 8] = b"LKTABLE1";
/// Common prefix of all formats. The format number follows as one digit.
const MAGIC_PREFIX: &[u8; 7] = b"LKTABLE";
const FORMAT: u32 = 1;
/// A chunk is closed when it reaches this size.
const CHUNK_BYTES: usize = 64 * 1024;
/// Upper bound on the size of a chunk: `CHUNK_BYTES` and one more record.
const CHUNK_BYTES_MAX: usize = 1024 * 1024;

/// Error of reading a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The snapshot is truncated.
    #[error("the snapshot is truncated: it has {found} of {expected} records")]
    Incomplete {
        /// Records found.
        found: u64,
        /// Records announced by the head.
        expected: u64,
    },
    /// The snapshot is damaged, or not a snapshot.
    #[error("the snapshot is damaged at byte {offset}: {what}")]
    Damaged {
        /// Offset of the damage.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// The snapshot has a format that this version cannot read.
    #[error(
        "the snapshot has format {found}, and this version of lockkeeper reads format {FORMAT}: use the version \
         that wrote it, or a newer one"
    )]
    Format {
        /// Its format.
        found: u32,
    },
    /// The snapshot is intact, but was written by a newer version.
    #[error(
        "the snapshot contains a record at byte {offset} that this version of lockkeeper does not know ({what}), \
         although its checksum is correct: use the version that wrote it, or a newer one"
    )]
    Newer {
        /// Offset of the record.
        offset: u64,
        /// What is unknown.
        what: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    applied: u64,
    now: CellTime,
    last_token: Token,
    last_ticket: Ticket,
    cell_version: CellVersion,
    ending_next: u64,
    backlog_next: u64,
    free_next: u64,
    forgotten: Token,
    removed_version: u64,
    scopes_next: u64,
    idle_scopes_next: u64,
    state_bytes_max: Option<u64>,
    hash: u64,
    cursor: Cursor,
    counting: Option<Counting>,
    records: u64,
}

/// A record of a snapshot. From the first release on, new variants are appended and none is removed or changed: the
/// position of a variant is its number in the file. A change that an older version would misread instead of rejecting
/// needs the next `FORMAT`. Files of released versions are test data: see lockkeeper-server/tests/server/formats.
#[derive(Debug, Serialize, Deserialize)]
enum Record {
    Head(Head),
    Session(SessionId, Session),
    Lock {
        name: LockName,
        capacity: u32,
        last_token: Token,
        closed_until: CellTime,
        freed: Option<u64>,
    },
    Grant(SessionId, Token, Held),
    Waiter(Ticket, Waiter),
    Request(SessionId, RequestId, Remembered),
    Settled(SessionId, u64, RequestId),
    Ending(u64, SessionId, SessionEnd),
    Forgetting(u64, SessionId),
    Task(u64, Task),
    Value(SmolStr, StoredValue),
    Scope(ScopeNo, Scope),
    Limiter(SmolStr, u128),
    /// The last record; `hash` covers all records before it.
    End {
        records: u64,
        hash: u64,
    },
    History(HistoryRecord),
    Access(AccessRecord),
}

impl LockTable {
    /// The table as chunks of bytes. [`Restore`] reads their concatenation.
    pub fn snapshot(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        let records = (self.sessions.len()
            + self.locks.len()
            + self.grants.len()
            + self.waiters.len()
            + self.requests.len()
            + self.settled.len()
            + self.ending.len()
            + self.forgetting.len()
            + self.backlog.tasks.len()
            + self.values.len()
            + self.scopes.all.len()
            + self.limiters.len()
            + self.history.records_len()
            + self.access.records_len()) as u64;
        let head = Record::Head(Head {
            applied: self.applied,
            now: self.now,
            last_token: self.last_token,
            last_ticket: self.last_ticket,
            cell_version: self.cell_version,
            ending_next: self.ending_next,
            backlog_next: self.backlog.next,
            free_next: self.free_next,
            forgotten: self.forgotten,
            removed_version: self.removed_version,
            scopes_next: self.scopes.next,
            idle_scopes_next: self.scopes.idle_next,
            state_bytes_max: self.state_bytes_max,
            hash: self.hash,
            cursor: self.cursor.clone(),
            counting: self.access.counting.clone(),
            records,
        });
        let sessions = self.sessions.iter().map(|(id, session)| Record::Session(*id, session.clone()));
        let locks = self.locks.iter().map(|(name, lock)| Record::Lock {
            name: name.clone(),
            capacity: lock.capacity,
            last_token: lock.last_token,
            closed_until: lock.closed_until,
            freed: lock.freed,
        });
        let grants =
            self.grants.iter().map(|((session, token), held)| Record::Grant(*session, *token, held.clone()));
        let waiters = self.waiters.iter().map(|(ticket, waiter)| Record::Waiter(*ticket, waiter.clone()));
        let requests = self
            .requests
            .iter()
            .map(|((session, request), answer)| Record::Request(*session, request.clone(), answer.clone()));
        let settled = self
            .settled
            .iter()
            .map(|((session, number), request)| Record::Settled(*session, *number, request.clone()));
        let ending =
            self.ending.iter().map(|(number, (session, why))| Record::Ending(*number, *session, *why));
        let forgetting =
            self.forgetting.iter().map(|(number, session)| Record::Forgetting(*number, *session));
        let tasks = self.backlog.tasks.iter().map(|(number, task)| Record::Task(*number, task.clone()));
        let values = self.values.iter().map(|(key, value)| Record::Value(key.clone(), value.clone()));
        let scopes = self.scopes.all.iter().map(|(no, scope)| Record::Scope(*no, scope.clone()));
        let limiters = self.limiters.iter().map(|(name, full)| Record::Limiter(name.clone(), *full));
        let all = std::iter::once(head)
            .chain(sessions)
            .chain(locks)
            .chain(grants)
            .chain(waiters)
            .chain(requests)
            .chain(settled)
            .chain(ending)
            .chain(forgetting)
            .chain(tasks)
            .chain(values)
            .chain(scopes)
            .chain(limiters)
            .chain(self.history.records().map(Record::History))
            .chain(self.access.records().map(Record::Access))
            .chain(std::iter::once(Record::End { records, hash: 0 }));
        Chunks { records: all, started: false, crc: 0, digest: Digest::default() }
    }
}

struct Chunks<I> {
    records: I,
    started: bool,
    crc: u32,
    /// Digest of all records so far.
    digest: Digest,
}

impl<I: Iterator<Item = Record>> Iterator for Chunks<I> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut payload = Vec::with_capacity(CHUNK_BYTES + 4 * 1024);
        while payload.len() < CHUNK_BYTES {
            let Some(mut record) = self.records.next() else { break };
            reads::count(1);
            if let Record::End { hash, .. } = &mut record {
                *hash = self.digest.clone().finish();
            }
            let before = payload.len();
            // Writing to memory cannot fail, and postcard can encode every record.
            payload = postcard::to_extend(&record, payload).unwrap_or_default();
            self.digest.put_bytes(payload.get(before..).unwrap_or_default());
        }
        if payload.is_empty() {
            return None;
        }
        self.crc = crc_after(self.crc, &payload);
        let mut chunk = Vec::with_capacity(payload.len() + 16);
        if !std::mem::replace(&mut self.started, true) {
            chunk.extend_from_slice(MAGIC);
        }
        chunk.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        chunk.extend_from_slice(&self.crc.to_le_bytes());
        chunk.extend_from_slice(&payload);
        Some(chunk)
    }
}

/// Builds a table from the bytes of a snapshot, in pieces of any size.
#[derive(Debug, Default)]
pub struct Restore {
    table: LockTable,
    pending: Vec<u8>,
    crc: u32,
    /// Digest of all records so far.
    digest: Digest,
    offset: u64,
    magic_seen: bool,
    expected: Option<u64>,
    found: u64,
    ended: bool,
}

impl Restore {
    /// A restore that has read nothing yet.
    pub fn new() -> Restore {
        Restore::default()
    }

    /// Reads the next bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.pending.extend_from_slice(bytes);
        let mut used = 0;
        loop {
            let rest = &self.pending[used..];
            if !self.magic_seen {
                if rest.len() < MAGIC.len() {
                    break;
                }
                if !rest.starts_with(MAGIC) {
                    if rest.starts_with(MAGIC_PREFIX)
                        && let Some(found) = char::from(rest[MAGIC_PREFIX.len()]).to_digit(10)
                    {
                        return Err(SnapshotError::Format { found });
                    }
                    return Err(self.damaged("it does not start like a snapshot of Lockkeeper"));
                }
                self.magic_seen = true;
                used += MAGIC.len();
                self.offset += MAGIC.len() as u64;
                continue;
            }
            let Some((length, crc)) = chunk_head(rest) else { break };
            if length > CHUNK_BYTES_MAX {
                return Err(self.damaged("a chunk is larger than the maximum"));
            }
            let Some(payload) = rest.get(8..8 + length) else { break };
            if crc_after(self.crc, payload) != crc {
                return Err(self.damaged("the checksum of a chunk does not match"));
            }
            self.crc = crc;
            let payload = payload.to_vec();
            self.take_chunk(&payload)?;
            used += 8 + length;
            self.offset += 8 + length as u64;
        }
        self.pending.drain(..used);
        Ok(())
    }

    /// Returns the table if the snapshot is complete.
    pub fn finish(mut self) -> Result<LockTable, SnapshotError> {
        let expected = self.expected.unwrap_or(0);
        if !self.ended || !self.pending.is_empty() || self.found != expected {
            return Err(SnapshotError::Incomplete { found: self.found, expected });
        }
        self.build_indexes()?;
        Ok(self.table)
    }

    fn damaged(&self, what: &str) -> SnapshotError {
        SnapshotError::Damaged { offset: self.offset, what: what.to_owned() }
    }

    fn take_chunk(&mut self, mut payload: &[u8]) -> Result<(), SnapshotError> {
        while !payload.is_empty() {
            if self.ended {
                return Err(self.damaged("there is data after its last record"));
            }
            let (record, rest) = postcard::take_from_bytes::<Record>(payload)
                .map_err(|error| SnapshotError::Newer { offset: self.offset, what: error.to_string() })?;
            let length = payload.len() - rest.len();
            if let Record::End { hash, .. } = &record
                && *hash != self.digest.clone().finish()
            {
                return Err(self.damaged("the hash of its records does not match"));
            }
            self.digest.put_bytes(&payload[..length]);
            payload = rest;
            self.take_record(record)?;
        }
        Ok(())
    }

    fn take_record(&mut self, record: Record) -> Result<(), SnapshotError> {
        if self.expected.is_none() != matches!(record, Record::Head(_)) {
            return Err(self.damaged("its head is missing or duplicated"));
        }
        let table = &mut self.table;
        // Every key of a map is written once. The same holds for indexes: a duplicate would overwrite an entry here, and
        // the table would differ from the one that was written.
        let is_duplicate = match record {
            Record::Head(head) => {
                table.applied = head.applied;
                table.now = head.now;
                if !mutation::is_on(Mutation::TokenFromMemory) {
                    table.last_token = head.last_token;
                }
                table.last_ticket = head.last_ticket;
                table.cell_version = head.cell_version;
                table.ending_next = head.ending_next;
                table.backlog.next = head.backlog_next;
                table.free_next = head.free_next;
                table.forgotten = head.forgotten;
                table.removed_version = head.removed_version;
                table.scopes.next = head.scopes_next;
                table.scopes.idle_next = head.idle_scopes_next;
                table.state_bytes_max = head.state_bytes_max;
                (table.hash, table.cursor) = (head.hash, head.cursor);
                table.access.counting = head.counting;
                self.expected = Some(head.records);
                return Ok(());
            }
            Record::Session(id, session) => {
                if let Some(identity) = &session.identity {
                    table.access.session_opened(identity);
                }
                table.sessions.insert(id, session).is_some()
            }
            Record::Lock { name, capacity, last_token, closed_until, freed } => {
                let listed = freed.is_some_and(|number| table.free.insert(number, name.clone()).is_some());
                if closed_until != CellTime::default() {
                    table.timers.insert((closed_until, Timer::Reopens(name.clone())));
                }
                let lock = Lock { capacity, closed_until, freed, ..Lock::new(last_token) };
                table.locks.insert(name, lock).is_some() || listed
            }
            Record::Grant(session, token, held) => table.grants.insert((session, token), held).is_some(),
            Record::Waiter(ticket, waiter) => table.waiters.insert(ticket, waiter).is_some(),
            Record::Request(session, request, answer) => {
                table.requests.insert((session, request), answer).is_some()
            }
            Record::Settled(session, number, request) => {
                table.settled.insert((session, number), request).is_some()
            }
            Record::Ending(number, session, why) => table.ending.insert(number, (session, why)).is_some(),
            Record::Forgetting(number, session) => table.forgetting.insert(number, session).is_some(),
            Record::Task(number, task) => table.backlog.put(number, task),
            Record::Value(key, value) => table.values.insert(key, value).is_some(),
            Record::Scope(no, scope) => {
                let named = table.scopes.names.insert((scope.session, scope.name.clone()), no).is_some();
                let listed = scope.idle.is_some_and(|number| table.scopes.idle.insert(number, no).is_some());
                table.scopes.all.insert(no, scope).is_some() || named || listed
            }
            Record::Limiter(name, full) => {
                table.limiters_due.insert((full, name.clone()));
                table.limiters.insert(name, full).is_some()
            }
            Record::History(record) => table.history.take(record),
            Record::Access(record) => table.access.take(record),
            Record::End { records, .. } => {
                if Some(records) != self.expected {
                    return Err(
                        self.damaged("its head and its last record disagree on the number of records")
                    );
                }
                self.ended = true;
                return Ok(());
            }
        };
        if is_duplicate {
            return Err(self.damaged("it contains a duplicate record"));
        }
        self.found += 1;
        Ok(())
    }

    /// Rebuilds holders, queues and counts from the grants and waiters.
    fn build_indexes(&mut self) -> Result<(), SnapshotError> {
        let LockTable { sessions, locks, grants, waiters, queues, candidates, waits, timers, scopes, .. } =
            &mut self.table;
        let unknown = |name: &LockName| SnapshotError::Damaged {
            offset: 0,
            what: format!("\"{name}\" is held or waited for, but has no lock record"),
        };
        for ((session, token), held) in grants.iter() {
            for name in held.locks.as_slice() {
                let lock = locks.get_mut(name).ok_or_else(|| unknown(name))?;
                lock.used =
                    lock.used.checked_add(held.units).filter(|used| *used <= lock.capacity).ok_or_else(
                        || SnapshotError::Damaged {
                            offset: 0,
                            what: format!("\"{name}\" has more holders than its capacity allows"),
                        },
                    )?;
                lock.holders.add(*token, *session);
            }
            if let Some(scope) = scope_of(held.extra.as_ref()) {
                scopes.note_grant(scope, *token, held.locks.as_slice());
            }
            if let Some(owner) = sessions.get_mut(session) {
                owner.grants += 1;
            }
        }
        for (ticket, waiter) in waiters.iter() {
            for name in waiter.locks.as_slice() {
                locks.get_mut(name).ok_or_else(|| unknown(name))?.waiting += 1;
                queues.insert((name.clone(), *ticket));
            }
            candidates.extend(waiter.candidate(*ticket));
            waits.insert((waiter.session, *ticket));
            if let Some(extra) = &waiter.extra {
                scopes.note_wait(extra, *ticket, waiter.locks.as_slice());
            }
            if let Some(owner) = sessions.get_mut(&waiter.session) {
                owner.waits += 1;
            }
            if let Some(until) = waiter.until {
                timers.insert((until, Timer::WaitEnds(*ticket)));
            }
        }
        self.table.count_restored();
        Ok(())
    }
}

/// Continues a CRC over more bytes.
fn crc_after(before: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(bytes);
    hasher.finalize()
}

fn chunk_head(bytes: &[u8]) -> Option<(usize, u32)> {
    let length = bytes.get(0..4)?.try_into().ok()?;
    let crc = bytes.get(4..8)?.try_into().ok()?;
    Some((u32::from_le_bytes(length) as usize, u32::from_le_bytes(crc)))
}
