//! Fuzz targets of the messages between members, for `crate::fuzz`.

use std::sync::Arc;

use lockkeeper_api::peer::peer_answer::Kind as AnswerKind;
use lockkeeper_api::peer::peer_request::Kind as RequestKind;
use lockkeeper_core::{Batch, CellTime, Command};
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{codec, format};
use crate::raft::encoded_batch::EncodedBatch;
use crate::raft::types::{Entry, Proposal, SnapshotMeta, TypeConfig, Vote};

/// The formats of messages, with one that exists only in test builds.
const FORMATS: std::ops::RangeInclusive<u32> = 1..=2;

/// Decodes the bytes as each type of message.
pub(crate) fn messages(bytes: &[u8]) {
    one::<openraft::raft::AppendEntriesRequest<TypeConfig>>(bytes);
    let plain = codec::decode::<openraft::raft::AppendEntriesRequest<TypeConfig>>(bytes);
    match (codec::decode_append(bytes), plain) {
        (Ok(read), Ok(plain)) => {
            assert_eq!(read.entries, plain.entries);
            assert!(codec::encode_append(&read).is_ok_and(|again| codec::decode_append(&again).is_ok()));
        }
        (read, plain) => assert!(read.is_err() && plain.is_err(), "{read:?} and {plain:?}"),
    }
    one::<openraft::raft::VoteRequest<TypeConfig>>(bytes);
    one::<openraft::raft::VoteResponse<TypeConfig>>(bytes);
    one::<openraft::raft::TransferLeaderRequest<TypeConfig>>(bytes);
    one::<Vote>(bytes);
    one::<SnapshotMeta>(bytes);
}

fn one<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
    if let Ok(read) = codec::decode::<T>(bytes) {
        assert!(codec::encode(&read).is_ok_and(|again| codec::decode::<T>(&again).is_ok()));
    }
}

/// Unwraps the message in a request in every format, and wraps it again.
pub(crate) fn wrapped_request(kind: &RequestKind) {
    for number in FORMATS {
        let mut wrapped = kind.clone();
        format::wrap_request(number, &mut wrapped);
        assert!(format::unwrap_request(number, &mut wrapped).is_ok() && wrapped == *kind, "{kind:?}");
        if format::unwrap_request(number, &mut wrapped).is_ok() {
            format::wrap_request(number, &mut wrapped);
            assert_eq!(wrapped, *kind);
        }
    }
}

/// Unwraps the message in an answer in every format, and wraps it again.
pub(crate) fn wrapped_answer(kind: &AnswerKind) {
    for number in FORMATS {
        let mut wrapped = kind.clone();
        format::wrap_answer(number, &mut wrapped);
        assert!(format::unwrap_answer(number, &mut wrapped).is_ok() && wrapped == *kind, "{kind:?}");
        if format::unwrap_answer(number, &mut wrapped).is_ok() {
            format::wrap_answer(number, &mut wrapped);
            assert_eq!(wrapped, *kind);
        }
    }
}

/// Returns encoded example messages.
pub(crate) fn examples() -> Vec<(&'static str, Vec<u8>)> {
    let id = openraft::testing::log_id::<TypeConfig>(3, 1, 7);
    let batch = Batch { now: CellTime(5), utc_ms: 0, commands: vec![Command::Tick] };
    let proposal = Proposal { proposer: 7, sequence: 9, batch: Arc::new(EncodedBatch::new(batch)) };
    let append = openraft::raft::AppendEntriesRequest::<TypeConfig> {
        vote: Vote::new_committed(3, 1),
        prev_log_id: Some(id),
        entries: vec![Entry::new(
            openraft::testing::log_id::<TypeConfig>(3, 1, 8),
            EntryPayload::Normal(proposal),
        )],
        leader_commit: Some(id),
    };
    let vote = openraft::raft::VoteRequest::<TypeConfig>::new(Vote::new(4, 2), Some(id));
    let bytes =
        |encoded: Result<bytes::Bytes, String>| encoded.map(|bytes| bytes.to_vec()).unwrap_or_default();
    vec![
        ("append", bytes(codec::encode_append(&append))),
        ("vote", bytes(codec::encode(&vote))),
        ("meta", bytes(codec::encode(&SnapshotMeta { last_log_id: Some(id), ..SnapshotMeta::default() }))),
    ]
}
