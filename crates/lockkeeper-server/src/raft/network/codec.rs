//! Raft's messages as bytes. Both ends have the same format, or they do not speak at all.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A message as bytes.
pub(super) fn encode<T: Serialize>(message: &T) -> Result<Bytes, String> {
    postcard::to_extend(message, Vec::with_capacity(256))
        .map(Bytes::from)
        .map_err(|error| format!("a message for another member can't be encoded: {error}"))
}

/// The message in these bytes.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(format!("a message of another member has {} bytes too many", rest.len())),
        Err(error) => Err(format!("a message of another member can't be decoded: {error}")),
    }
}
