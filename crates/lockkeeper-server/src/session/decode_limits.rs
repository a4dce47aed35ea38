//! Limits on the number of parts in a client's frame, or in the request of a unary call, checked before it is decoded. Two bytes
//! on the wire can become a few hundred in memory: an operation without fields, an empty name in a list. A frame of 4 MiB could
//! take half a gigabyte (S11).

use bytes::Buf;
use lockkeeper_api::v1;
use prost::encoding::{WireType, decode_key, decode_varint};

/// Most operations in one frame. Our library sends at most a thousand.
pub(crate) const OPERATIONS_PER_FRAME_MAX: usize = 16_384;
/// Most strings, byte fields and messages in all operations of one frame, and in one unary request. The largest renewal has half as many.
const FIELDS_PER_FRAME_MAX: usize = 1 << 18;
/// Smaller frames cannot become large and are not checked.
const SMALL_BYTES: usize = 64 << 10;
/// The levels that have lists: the frame, its operations and their requests.
const DEPTH: usize = 3;
/// The level of requests. A unary call has only this one.
const REQUEST_DEPTH: usize = 2;

/// Refuses the bytes of a [`v1::ClientFrame`] that would take much more memory than their length. Bytes that are not
/// protobuf are left to the decoder, which stops at the same place.
pub(crate) fn check_frame(bytes: &[u8]) -> Result<(), &'static str> {
    if bytes.len() <= SMALL_BYTES {
        return Ok(());
    }
    Counter::new(OPERATIONS_PER_FRAME_MAX, FIELDS_PER_FRAME_MAX).add(bytes, 0)
}

/// Refuses the bytes of the request of a unary call in the same way.
pub(crate) fn check_request(bytes: &[u8]) -> Result<(), &'static str> {
    if bytes.len() <= SMALL_BYTES {
        return Ok(());
    }
    Counter::new(0, FIELDS_PER_FRAME_MAX).add(bytes, REQUEST_DEPTH)
}

/// Estimates the memory of decoded operations: their heap data is about as large as their encoding.
pub(crate) fn decoded_bytes(operations: &[v1::Operation]) -> usize {
    use prost::Message;
    operations.iter().map(|operation| size_of::<v1::Operation>() + 2 * operation.encoded_len()).sum()
}

/// Counts the parts of a frame, up to limits.
struct Counter {
    operations_left: usize,
    fields_left: usize,
}

impl Counter {
    fn new(operations_left: usize, fields_left: usize) -> Counter {
        Counter { operations_left, fields_left }
    }

    /// Counts the parts of a message, in the order in which they are decoded.
    fn add(&mut self, mut bytes: &[u8], depth: usize) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            let Ok((_, kind)) = decode_key(&mut bytes) else { return Ok(()) };
            let skipped = match kind {
                WireType::Varint => decode_varint(&mut bytes).map(|_| 0).ok(),
                WireType::SixtyFourBit => Some(8),
                WireType::ThirtyTwoBit => Some(4),
                WireType::LengthDelimited => decode_varint(&mut bytes).ok(),
                // The decoder skips a group and continues after it.
                WireType::StartGroup | WireType::EndGroup => return Err("groups are not supported"),
            };
            let Some(length) = skipped.and_then(|length| usize::try_from(length).ok()) else { return Ok(()) };
            if length > bytes.len() {
                return Ok(());
            }
            if kind == WireType::LengthDelimited {
                self.note(depth)?;
                if depth + 1 < DEPTH {
                    self.add(&bytes[..length], depth + 1)?;
                }
            }
            bytes.advance(length);
        }
        Ok(())
    }

    fn note(&mut self, depth: usize) -> Result<(), &'static str> {
        let (left, refusal) = match depth {
            0 => (&mut self.operations_left, "too many operations in one frame"),
            _ => (&mut self.fields_left, "too many fields in one message"),
        };
        *left = left.checked_sub(1).ok_or(refusal)?;
        Ok(())
    }
}

/// Checks that a frame that passes the limits has no more parts than they allow, and so a bounded size in memory. The limits
/// are low, so that short inputs reach them.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(bytes: &[u8]) {
    use prost::Message;
    use v1::operation::Kind;
    const OPERATIONS_MAX: usize = 3;
    const FIELDS_MAX: usize = 12;
    if Counter::new(OPERATIONS_MAX, FIELDS_MAX).add(bytes, 0).is_err() {
        return;
    }
    let Ok(frame) = v1::ClientFrame::decode(bytes) else { return };
    let lists = frame.operations.iter().map(|operation| match &operation.kind {
        Some(Kind::KeepAlive(request)) => request.sessions.len(),
        Some(Kind::AcquireAll(request)) => request.locks.len(),
        _ => 0,
    });
    let (operations, strings) = (frame.operations.len(), lists.sum::<usize>());
    assert!(operations <= OPERATIONS_MAX && strings <= FIELDS_MAX, "{operations} and {strings}: {frame:?}");
    // Texts and byte fields are as long in memory as on the wire.
    assert!(frame.encoded_len() <= bytes.len() + operations * size_of::<v1::Operation>(), "{frame:?}");
}

#[cfg(test)]
mod tests {
    use lockkeeper_api::v1::operation::Kind;
    use prost::Message;

    use super::*;

    const FRAME_BYTES: usize = 4 << 20;

    #[test]
    fn frames_that_expand_when_decoded_are_refused() {
        let operations = [0x0a, 0].repeat(FRAME_BYTES / 2);
        assert!(check_frame(&operations).is_err());
        let renewal = |count, length: usize| {
            let sessions = vec!["5".repeat(length); count];
            let kind = Some(Kind::KeepAlive(v1::KeepAliveAll { sessions }));
            v1::ClientFrame { operations: vec![v1::Operation { id: 1, kind }] }.encode_to_vec()
        };
        assert!(check_frame(&renewal(FRAME_BYTES / 2 - 100, 0)).is_err());
        assert!(check_frame(&renewal(FRAME_BYTES / 34 - 10, 32)).is_ok(), "the largest renewal");
    }

    #[test]
    fn unary_requests_that_expand_when_decoded_are_refused() {
        let acquire_all = |count, length: usize| {
            let locks = vec!["l".repeat(length); count];
            v1::AcquireAllRequest { locks, ..Default::default() }.encode_to_vec()
        };
        assert!(check_request(&acquire_all(FRAME_BYTES / 2, 0)).is_err());
        // Left to the limit on the locks of a request, which is named in its error.
        assert!(check_request(&acquire_all(FIELDS_PER_FRAME_MAX, 10)).is_ok());
        // The content of a value looks like anything, also like a group.
        let value = [0x7b, 0x0a, 0, 0x0b].repeat(FRAME_BYTES / 4);
        let put = v1::PutValueRequest { value, ..Default::default() }.encode_to_vec();
        assert!(check_request(&put).is_ok());
        // An unknown group, which the decoder skips, in front of the list.
        let hidden = [&[0x7b, 0x7c][..], &acquire_all(FRAME_BYTES / 2, 0)].concat();
        assert!(check_request(&hidden).is_err());
    }

    #[test]
    fn malformed_bytes_are_left_to_the_decoder() {
        for bytes in [vec![0xff; 1 << 20], [0x0a, 0xff, 0xff, 0x7f].repeat(1 << 18)] {
            assert!(check_frame(&bytes).is_ok());
        }
    }

    #[test]
    fn operations_after_a_group_are_counted() {
        // An unknown group with nothing in it, which the decoder skips.
        let operations = [&[0x7b, 0x7c][..], &[0x0a, 0].repeat(OPERATIONS_PER_FRAME_MAX + 1)].concat();
        // Enough for the check, which small frames pass unchecked.
        let operations = [operations, [0x0a, 0].repeat(SMALL_BYTES)].concat();
        assert!(v1::ClientFrame::decode(&operations[..]).is_ok());
        assert!(check_frame(&operations).is_err());
        let nested = [&[0x0a, 2, 0x7b, 0x7c][..], &[0x0a, 0].repeat(SMALL_BYTES)].concat();
        assert!(check_frame(&nested).is_err());
    }

    #[test]
    fn a_decoded_operation_is_counted_with_its_content() {
        let kind = Some(Kind::PutValue(v1::PutValueRequest { value: vec![1; 60_000], ..Default::default() }));
        let bytes = decoded_bytes(&[v1::Operation { id: 1, kind }, v1::Operation::default()]);
        assert!((60_000..200_000).contains(&bytes), "{bytes}");
    }
}
