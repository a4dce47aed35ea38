//! Raft's messages as bytes. Both ends have the same format, or they do not speak at all.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::raft::encoded_batch;
use crate::raft::types::TypeConfig;

type AppendEntriesRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;

/// A message as bytes.
pub(super) fn encode<T: Serialize>(message: &T) -> Result<Bytes, String> {
    encoded(postcard::to_extend(message, Vec::with_capacity(256)))
}

/// The same for entries, of which most is encoded already.
pub(super) fn encode_append(request: &AppendEntriesRequest) -> Result<Bytes, String> {
    encoded(encoded_batch::put_append(request))
}

fn encoded(result: postcard::Result<Vec<u8>>) -> Result<Bytes, String> {
    result.map(Bytes::from).map_err(|error| format!("a message for another member can't be encoded: {error}"))
}

/// The message in these bytes.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    decoded(postcard::take_from_bytes(bytes))
}

/// The same for entries, which keep their bytes.
pub(super) fn decode_append(bytes: &[u8]) -> Result<AppendEntriesRequest, String> {
    decoded(encoded_batch::take_append(bytes))
}

fn decoded<T>(result: postcard::Result<(T, &[u8])>) -> Result<T, String> {
    match result {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(format!("a message of another member has {} bytes too many", rest.len())),
        Err(error) => Err(format!("a message of another member can't be decoded: {error}")),
    }
}
