//! Encoding of raft's messages. Both ends use the same format, or refuse the connection.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::raft::encoded_batch;
use crate::raft::types::TypeConfig;

type AppendEntriesRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;

/// Encodes a message.
pub(super) fn encode<T: Serialize>(message: &T) -> Result<Bytes, String> {
    encoded(postcard::to_extend(message, Vec::with_capacity(256)))
}

/// Encodes entries, whose batches are already encoded.
pub(super) fn encode_append(request: &AppendEntriesRequest) -> Result<Bytes, String> {
    encoded(encoded_batch::put_append(request))
}

fn encoded(result: postcard::Result<Vec<u8>>) -> Result<Bytes, String> {
    result.map(Bytes::from).map_err(|error| format!("a message for another member can't be encoded: {error}"))
}

/// Decodes a message.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    decoded(postcard::take_from_bytes(bytes))
}

/// Decodes entries, whose batches keep their encoded bytes.
pub(super) fn decode_append(bytes: &[u8]) -> Result<AppendEntriesRequest, String> {
    decoded(encoded_batch::take_append(bytes))
}

fn decoded<T>(result: postcard::Result<(T, &[u8])>) -> Result<T, String> {
    match result {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(format!("a message from another member has {} trailing bytes", rest.len())),
        Err(error) => Err(format!("a message from another member can't be decoded: {error}")),
    }
}
