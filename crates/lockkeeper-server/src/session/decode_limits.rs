//! Limits on the number of parts in a client's frame, checked before it is decoded. Two bytes on the wire can become a few
//! hundred in memory: an operation without fields, an empty name in a list. A frame of 4 MiB could take half a gigabyte
//! (S11).

use bytes::Buf;
use lockkeeper_api::v1;
use prost::encoding::{WireType, decode_key, decode_varint};

/// Most operations in one frame. Our library sends at most a thousand.
pub(crate) const OPERATIONS_PER_FRAME_MAX: usize = 16_384;
/// Most strings, byte fields and messages in all operations of one frame. The largest renewal has half as many.
const FIELDS_PER_FRAME_MAX: usize = 1 << 18;
/// Smaller frames cannot become large and are not checked.
const SMALL_BYTES: usize = 64 << 10;
/// The levels that have lists: the frame, its operations and their requests.
const DEPTH: usize = 3;

/// Refuses the bytes of a [`v1::ClientFrame`] that would take much more memory than their length. Bytes that are not
/// protobuf are left to the decoder.
pub(crate) fn check_frame(bytes: &[u8]) -> Result<(), &'static str> {
    if bytes.len() <= SMALL_BYTES {
        return Ok(());
    }
    let mut count = Count::default();
    count.add(bytes, 0)?;
    Ok(())
}

/// Estimates the memory of decoded operations: their heap data is about as large as their encoding.
pub(crate) fn decoded_bytes(operations: &[v1::Operation]) -> usize {
    use prost::Message;
    operations.iter().map(|operation| size_of::<v1::Operation>() + 2 * operation.encoded_len()).sum()
}

#[derive(Default)]
struct Count {
    operations: usize,
    fields: usize,
}

impl Count {
    fn add(&mut self, mut bytes: &[u8], depth: usize) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            let Ok((_, kind)) = decode_key(&mut bytes) else { return Ok(()) };
            let skipped = match kind {
                WireType::Varint => decode_varint(&mut bytes).map(|_| 0).ok(),
                WireType::SixtyFourBit => Some(8),
                WireType::ThirtyTwoBit => Some(4),
                WireType::LengthDelimited => decode_varint(&mut bytes).ok(),
                WireType::StartGroup | WireType::EndGroup => return Ok(()),
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
        match depth {
            0 => self.operations += 1,
            _ => self.fields += 1,
        }
        if self.operations > OPERATIONS_PER_FRAME_MAX {
            return Err("too many operations in one frame");
        }
        if self.fields > FIELDS_PER_FRAME_MAX {
            return Err("too many fields in the operations of one frame");
        }
        Ok(())
    }
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
    fn malformed_bytes_are_left_to_the_decoder() {
        for bytes in [vec![0xff; 1 << 20], [0x0a, 0xff, 0xff, 0x7f].repeat(1 << 18), vec![0x0b; 1 << 20]] {
            assert!(check_frame(&bytes).is_ok());
        }
    }

    #[test]
    fn a_decoded_operation_is_counted_with_its_content() {
        let kind = Some(Kind::PutValue(v1::PutValueRequest { value: vec![1; 60_000], ..Default::default() }));
        let bytes = decoded_bytes(&[v1::Operation { id: 1, kind }, v1::Operation::default()]);
        assert!((60_000..200_000).contains(&bytes), "{bytes}");
    }
}
