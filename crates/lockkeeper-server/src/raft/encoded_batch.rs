//! The commands of an entry together with their encoded bytes. An entry is written to the leader's log, sent to each member
//! and written to its log. The leader encodes its commands once, and the bytes are copied from then on.
//!
//! The encoding equals postcard's encoding of the same value byte for byte, so an entry can be encoded without the copied
//! bytes and decoded without this module.

use std::ops::Deref;
use std::sync::Arc;

use lockkeeper_core::Batch;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::types::{Entry, LogId, Proposal, TypeConfig, Vote};

type AppendEntriesRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;
type Encoded = postcard::Result<Vec<u8>>;
type Decoded<'a, T> = postcard::Result<(T, &'a [u8])>;

/// Variant index of `EntryPayload::Normal`.
const NORMAL: u32 = 1;

/// Batch, with its encoded bytes if they are available.
#[derive(Debug)]
pub struct EncodedBatch {
    batch: Batch,
    // Invariant: they decode to `batch`.
    bytes: Option<Box<[u8]>>,
}

impl EncodedBatch {
    /// Encodes the batch.
    pub fn new(batch: Batch) -> EncodedBatch {
        // A batch that can't be encoded is refused by the log, which reports the reason.
        let bytes = put(&batch, Vec::with_capacity(64 * (batch.commands.len() + 1))).ok();
        EncodedBatch { batch, bytes: bytes.map(Vec::into_boxed_slice) }
    }
}

impl Deref for EncodedBatch {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        &self.batch
    }
}

impl PartialEq for EncodedBatch {
    fn eq(&self, other: &EncodedBatch) -> bool {
        self.batch == other.batch
    }
}

impl Serialize for EncodedBatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.batch.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for EncodedBatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<EncodedBatch, D::Error> {
        Batch::deserialize(deserializer).map(|batch| EncodedBatch { batch, bytes: None })
    }
}

fn put<T: Serialize>(value: &T, out: Vec<u8>) -> Encoded {
    postcard::to_extend(value, out)
}

fn take<T: DeserializeOwned>(bytes: &[u8]) -> Decoded<'_, T> {
    postcard::take_from_bytes(bytes)
}

/// Appends an encoded entry to `out`.
pub(crate) fn put_entry(entry: &Entry, out: Vec<u8>) -> Encoded {
    match &entry.payload {
        EntryPayload::Normal(Proposal { proposer, sequence, batch }) if let Some(bytes) = &batch.bytes => {
            let mut out = put(&(entry.log_id, NORMAL, proposer, sequence), out)?;
            out.extend_from_slice(bytes);
            Ok(out)
        }
        _ => put(entry, out),
    }
}

/// Decodes an entry from the front of `bytes`, and keeps the bytes of its commands.
pub(crate) fn take_entry(bytes: &[u8]) -> Decoded<'_, Entry> {
    let (log_id, payload) = take::<LogId>(bytes)?;
    let (kind, rest) = take::<u32>(payload)?;
    if kind != NORMAL {
        let (payload, rest) = take(payload)?;
        return Ok((Entry::new(log_id, payload), rest));
    }
    let ((proposer, sequence), commands) = take::<(u64, u64)>(rest)?;
    let (batch, rest) = take::<Batch>(commands)?;
    let bytes = Some(commands[..commands.len() - rest.len()].into());
    let batch = Arc::new(EncodedBatch { batch, bytes });
    Ok((Entry::new(log_id, EntryPayload::Normal(Proposal { proposer, sequence, batch })), rest))
}

/// Encodes an append request.
pub(crate) fn put_append(request: &AppendEntriesRequest) -> Encoded {
    let encoded_len = |entry: &Entry| match &entry.payload {
        EntryPayload::Normal(proposal) => proposal.batch.bytes.as_ref().map_or(0, |bytes| bytes.len()),
        _ => 0,
    };
    let room = 128 + request.entries.iter().map(|entry| encoded_len(entry) + 64).sum::<usize>();
    let count = request.entries.len() as u64;
    let mut out = put(&(request.vote, request.prev_log_id, count), Vec::with_capacity(room))?;
    for entry in &request.entries {
        out = put_entry(entry, out)?;
    }
    put(&request.leader_commit, out)
}

/// Decodes an append request.
pub(crate) fn take_append(bytes: &[u8]) -> Decoded<'_, AppendEntriesRequest> {
    let ((vote, prev_log_id, count), mut rest) = take::<(Vote, Option<LogId>, u64)>(bytes)?;
    // The count is untrusted, so no capacity is reserved for it.
    let mut entries = Vec::new();
    for _ in 0..count {
        let (entry, after) = take_entry(rest)?;
        entries.push(entry);
        rest = after;
    }
    let (leader_commit, rest) = take(rest)?;
    Ok((AppendEntriesRequest { vote, prev_log_id, entries, leader_commit }, rest))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lockkeeper_core::{Acquire, CellTime, Command, Locks, SessionId};
    use openraft::Membership;
    use openraft::testing::log_id;

    use super::*;
    use crate::raft::types::Member;

    fn batch() -> Batch {
        let acquire = |number: u128| {
            let lock = Locks::One(format!("orders/{number}").into());
            Command::Acquire(Acquire {
                request: Some("r-1".into()),
                ..Acquire::new(SessionId(number << 100), lock)
            })
        };
        Batch {
            now: CellTime(123_456),
            utc_ms: 0,
            commands: (0..40).map(acquire).chain([Command::Tick]).collect(),
        }
    }

    fn request(encode: impl Fn(Batch) -> EncodedBatch) -> AppendEntriesRequest {
        let proposal = |sequence| Proposal { proposer: u64::MAX, sequence, batch: Arc::new(encode(batch())) };
        let members =
            Membership::<u64, Member>::new(vec![[1].into()], BTreeMap::from([(1, Member::default())]))
                .expect("a member");
        let payloads = [
            EntryPayload::Normal(proposal(300)),
            EntryPayload::Blank,
            EntryPayload::Membership(members),
            EntryPayload::Normal(proposal(301)),
        ];
        let entries = payloads.into_iter().zip(8..);
        let entries = entries.map(|(payload, index)| Entry::new(log_id::<TypeConfig>(3, 1, index), payload));
        AppendEntriesRequest {
            vote: Vote::new_committed(3, 1),
            prev_log_id: Some(log_id::<TypeConfig>(2, 1, 7)),
            entries: entries.collect(),
            leader_commit: Some(log_id::<TypeConfig>(2, 1, 6)),
        }
    }

    #[test]
    fn the_encoding_equals_postcards_with_and_without_copied_bytes() {
        let bare = request(|batch| EncodedBatch { batch, bytes: None });
        let expected = put(&bare, Vec::new()).expect("encoded");
        assert_eq!(put_append(&bare).expect("encoded"), expected);
        assert_eq!(put_append(&request(EncodedBatch::new)).expect("encoded"), expected);
        for entry in request(EncodedBatch::new).entries {
            assert_eq!(put_entry(&entry, vec![7]).expect("encoded"), put(&entry, vec![7]).expect("encoded"));
        }
    }

    #[test]
    fn decoded_entries_are_equal_and_keep_their_bytes() {
        let bytes = put_append(&request(EncodedBatch::new)).expect("encoded");
        let (read, rest) = take_append(&bytes).expect("decoded");
        assert_eq!(rest, [0; 0]);
        assert_eq!(read.entries, request(EncodedBatch::new).entries);
        assert_eq!(take::<AppendEntriesRequest>(&bytes).expect("decoded").0.entries, read.entries);
        let EntryPayload::Normal(proposal) = &read.entries[0].payload else { panic!("{read:?}") };
        assert_eq!(proposal.batch.bytes, EncodedBatch::new(batch()).bytes);
        for cut in 0..bytes.len() {
            assert!(take_append(&bytes[..cut]).is_err(), "{cut} of {} bytes are not a request", bytes.len());
        }
    }
}
