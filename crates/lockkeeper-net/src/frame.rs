//! Frames straight on TCP: the same messages as on the gRPC stream, each behind its length.
//!
//! ```text
//! client: "LKSTRM1\n"                 node: "LKSTRM1\n"
//! then, in both directions: length (u32 BE), ClientFrame or ServerFrame (protobuf)
//! ```
//! HTTP/2 costs about as much as the kernel's part of a small message, on both sides. A client with one
//! request under way on a connection of its own feels all of it; see docs/adr/0006-frames-on-tcp.md.

use bytes::{Buf, BufMut, BytesMut};
use prost::Message;

/// What both sides say first.
pub const GREETING: &[u8; 8] = b"LKSTRM1\n";
/// What a leader and its follower say first; then come requests to append and their answers.
pub const MEMBERS_GREETING: &[u8; 8] = b"LKPEER1\n";

/// Memory reserved for the rest of a message of which little has arrived.
const RESERVED_AT_ONCE: usize = 64 << 10;

/// The bytes are no frame; the connection cannot be used any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAFrame {
    /// Longer than this side takes.
    TooLong {
        /// Its length.
        bytes: usize,
        /// The most that is taken.
        bytes_max: usize,
    },
    /// Not the message that was expected.
    Garbled(String),
}

impl std::fmt::Display for NotAFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotAFrame::TooLong { bytes, bytes_max } => {
                write!(f, "a frame of {bytes} bytes is longer than the {bytes_max} that are taken")
            }
            NotAFrame::Garbled(what) => write!(f, "a frame cannot be read: {what}"),
        }
    }
}

impl std::error::Error for NotAFrame {}

/// Puts a message behind what is in the buffer.
pub fn encode(message: &impl Message, buffer: &mut BytesMut) {
    let length = message.encoded_len();
    buffer.reserve(4 + length);
    buffer.put_u32(length as u32);
    // There is room: it was just reserved.
    let _ = message.encode(buffer);
}

/// Takes the first message out of the buffer; `None` if not all of it is there yet.
pub fn decode<M: Message + Default>(buffer: &mut BytesMut, bytes_max: usize) -> Result<Option<M>, NotAFrame> {
    decode_checked(buffer, bytes_max, |_| Ok(()))
}

/// The same, but `check` sees the bytes of the message before it is decoded and may refuse them.
pub fn decode_checked<M: Message + Default>(
    buffer: &mut BytesMut,
    bytes_max: usize,
    check: impl FnOnce(&[u8]) -> Result<(), &'static str>,
) -> Result<Option<M>, NotAFrame> {
    let Some(head) = buffer.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*head) as usize;
    if length > bytes_max {
        return Err(NotAFrame::TooLong { bytes: length, bytes_max });
    }
    if buffer.len() < 4 + length {
        // The length is what the sender claims: memory grows with what has arrived.
        let missing = 4 + length - buffer.len();
        buffer.reserve(missing.min(buffer.len().max(RESERVED_AT_ONCE)));
        return Ok(None);
    }
    check(&buffer[4..4 + length]).map_err(|why| NotAFrame::Garbled(why.to_owned()))?;
    buffer.advance(4);
    let message = M::decode(&buffer[..length]).map_err(|error| NotAFrame::Garbled(error.to_string()))?;
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
    fn frames_come_out_as_they_went_in_whatever_the_pieces() {
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
    fn a_frame_that_is_too_long_is_refused_before_it_is_read() {
        let mut buffer = BytesMut::from(&[0xff, 0xff, 0xff, 0xff][..]);
        let refused = NotAFrame::TooLong { bytes: u32::MAX as usize, bytes_max: 1_000 };
        assert_eq!(decode::<ClientFrame>(&mut buffer, 1_000), Err(refused));
    }

    #[test]
    fn other_bytes_are_no_frame() {
        let mut buffer = BytesMut::from(&[0, 0, 0, 2, 0x0a, 0x7f][..]);
        assert!(matches!(decode::<ClientFrame>(&mut buffer, 1_000), Err(NotAFrame::Garbled(_))));
    }
}
