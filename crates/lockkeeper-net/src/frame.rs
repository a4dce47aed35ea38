//! Frames straight on TCP: the messages of the gRPC stream, each with a length prefix.
//!
//! ```text
//! client: "LKSTRM1\n"                 node: "LKSTRM1\n"
//! then, in both directions: length (u32 BE), ClientFrame or ServerFrame (protobuf)
//! ```
//! HTTP/2 costs about as much CPU time as the kernel's part of a small message, on both sides. A client with one request
//! in flight on its own connection pays all of it; see docs/adr/0006-frames-on-tcp.md.

use bytes::{Buf, BufMut, BytesMut};
use prost::Message;

/// The first bytes in both directions between client and node.
pub const GREETING: &[u8; 8] = b"LKSTRM1\n";
/// The first bytes in both directions between leader and follower; append requests and their answers follow.
pub const MEMBERS_GREETING: &[u8; 8] = b"LKPEER1\n";

/// Memory to reserve for the rest of a message of which little has arrived.
const RESERVED_AT_ONCE: usize = 64 << 10;

/// The bytes are not a frame, and the connection is unusable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameError {
    /// The frame is too long.
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit of this side.
        bytes_max: usize,
    },
    /// The frame does not contain the expected message.
    Garbled(String),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::TooLong { bytes, bytes_max } => {
                write!(f, "a frame has {bytes} bytes; at most {bytes_max} are allowed")
            }
            FrameError::Garbled(what) => write!(f, "failed to decode a frame: {what}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Appends a message to the buffer.
pub fn encode(message: &impl Message, buffer: &mut BytesMut) {
    let length = message.encoded_len();
    buffer.reserve(4 + length);
    buffer.put_u32(length as u32);
    // Cannot fail: the space was just reserved.
    let _ = message.encode(buffer);
}

/// Takes the first message out of the buffer; `None` if it is not complete yet.
pub fn decode<M: Message + Default>(
    buffer: &mut BytesMut,
    bytes_max: usize,
) -> Result<Option<M>, FrameError> {
    decode_checked(buffer, bytes_max, |_| Ok(()))
}

/// Like [`decode`], but `check` sees the bytes of the message first and may refuse them.
pub fn decode_checked<M: Message + Default>(
    buffer: &mut BytesMut,
    bytes_max: usize,
    check: impl FnOnce(&[u8]) -> Result<(), &'static str>,
) -> Result<Option<M>, FrameError> {
    let Some(head) = buffer.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*head) as usize;
    if length > bytes_max {
        return Err(FrameError::TooLong { bytes: length, bytes_max });
    }
    if buffer.len() < 4 + length {
        // The length is only claimed by the sender: memory grows with the bytes that have arrived.
        let missing = 4 + length - buffer.len();
        buffer.reserve(missing.min(buffer.len().max(RESERVED_AT_ONCE)));
        return Ok(None);
    }
    check(&buffer[4..4 + length]).map_err(|why| FrameError::Garbled(why.to_owned()))?;
    buffer.advance(4);
    let message = M::decode(&buffer[..length]).map_err(|error| FrameError::Garbled(error.to_string()))?;
    buffer.advance(length);
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_api::v1::{ClientFrame, Operation};

    fn frame(id: u64) -> ClientFrame {
        ClientFrame { operations: vec![Operation { id, kind: None }] }
    }

    #[test]
    fn frames_are_decoded_from_any_fragments() {
        let mut whole = BytesMut::new();
        for id in 1..=3 {
            encode(&frame(id), &mut whole);
        }
        for piece in 1..whole.len() {
            let mut buffer = BytesMut::new();
            let mut seen = Vec::new();
            for bytes in whole.chunks(piece) {
                buffer.extend_from_slice(bytes);
                while let Some(found) = decode::<ClientFrame>(&mut buffer, 1_000).expect("whole frames") {
                    seen.push(found);
                }
            }
            assert_eq!(seen, [frame(1), frame(2), frame(3)]);
        }
    }

    #[test]
    fn too_long_frame_is_refused_before_it_is_read() {
        let mut buffer = BytesMut::from(&[0xff, 0xff, 0xff, 0xff][..]);
        let refused = FrameError::TooLong { bytes: u32::MAX as usize, bytes_max: 1_000 };
        assert_eq!(decode::<ClientFrame>(&mut buffer, 1_000), Err(refused));
    }

    #[test]
    fn other_bytes_are_not_a_frame() {
        let mut buffer = BytesMut::from(&[0, 0, 0, 2, 0x0a, 0x7f][..]);
        assert!(matches!(decode::<ClientFrame>(&mut buffer, 1_000), Err(FrameError::Garbled(_))));
    }
}
