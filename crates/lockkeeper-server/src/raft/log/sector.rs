//! The sector: what a disk writes whole or not at all, so what a torn write is made of.
//!
//! ```text
//! 0    head mark   4 bytes, never zero
//! 4    crc32       of segment number, sector number, and bytes 8..508
//! 8    frame       u64, from 1: which gathered write it belongs to
//! 16   part        u32: which sector of that frame
//! 20   parts       u32: how many sectors that frame has
//! 24   payload     484 bytes
//! 508  tail mark   4 bytes, never zero
//! ```
//!
//! Segments are zero-filled before use, so a sector says about itself whether it was ever written: all zero
//! means never, a mark that is still zero means that the write stopped inside. A sector that was once written
//! and then got a wrong byte keeps both marks. That difference decides what may be cut (see `recover`).
//! Marks are outside the checksum and prove nothing else: a tear or a wrong byte within a mark leaves the
//! content whole, and the sector counts as whole.
//! The place is part of the checksum, so that a sector written to the wrong place is not taken for a good one.

use super::disk::SECTOR_BYTES;

const HEAD_MARK: [u8; 4] = *b"Lk\x01[";
const TAIL_MARK: [u8; 4] = *b"]Lk\x01";
const PAYLOAD_START: usize = 24;
const TAIL_START: usize = SECTOR_BYTES - 4;
/// How many bytes of a frame one sector carries.
pub(crate) const PAYLOAD_BYTES: usize = TAIL_START - PAYLOAD_START;

/// Where a sector lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: u64,
    pub(crate) sector: u32,
}

/// What a sector says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) frame: u64,
    pub(crate) part: u32,
    pub(crate) parts: u32,
}

/// What is found in a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Never written.
    Zero,
    /// Written in part: one of its ends is still zero.
    Unfinished,
    /// Written, and as it was written.
    Whole(Head),
    /// Written, and not as it was written.
    Damaged,
}

/// Appends one sector to `out`. `payload` is at most [`PAYLOAD_BYTES`] long; the rest is zero.
pub(crate) fn seal(out: &mut Vec<u8>, place: Place, head: Head, payload: &[u8]) {
    debug_assert!(payload.len() <= PAYLOAD_BYTES && head.frame > 0 && head.part < head.parts);
    let start = out.len();
    out.extend_from_slice(&HEAD_MARK);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&head.frame.to_le_bytes());
    out.extend_from_slice(&head.part.to_le_bytes());
    out.extend_from_slice(&head.parts.to_le_bytes());
    out.extend_from_slice(payload);
    out.resize(start + TAIL_START, 0);
    let crc = checksum(place, &out[start..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&TAIL_MARK);
}

/// Looks at one sector. `bytes` is [`SECTOR_BYTES`] long.
pub(crate) fn inspect(place: Place, bytes: &[u8]) -> Found {
    if is_zero(bytes) {
        return Found::Zero;
    }
    let head = Head {
        frame: u64::from_le_bytes(array(bytes, 8)),
        part: u32::from_le_bytes(array(bytes, 16)),
        parts: u32::from_le_bytes(array(bytes, 20)),
    };
    let crc = u32::from_le_bytes(array(bytes, 4));
    if crc == checksum(place, bytes) && head.frame > 0 && head.part < head.parts {
        Found::Whole(head)
    } else if is_zero(&bytes[..4]) || is_zero(&bytes[TAIL_START..]) {
        Found::Unfinished
    } else {
        Found::Damaged
    }
}

/// Puts the marks of a whole sector right.
pub(crate) fn mark(bytes: &mut [u8]) {
    bytes[..4].copy_from_slice(&HEAD_MARK);
    bytes[TAIL_START..].copy_from_slice(&TAIL_MARK);
}

/// The bytes that a sector carries.
pub(crate) fn payload(bytes: &[u8]) -> &[u8] {
    &bytes[PAYLOAD_START..TAIL_START]
}

fn checksum(place: Place, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&place.segment.to_le_bytes());
    hasher.update(&place.sector.to_le_bytes());
    hasher.update(&bytes[8..TAIL_START]);
    hasher.finalize()
}

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// `N` bytes from `start`. The caller has made sure that they are there.
pub(crate) fn array<const N: usize>(bytes: &[u8], start: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[start..start + N]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { segment: 3, sector: 7 };
    const HEAD: Head = Head { frame: 1, part: 0, parts: 1 };

    fn sealed(payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        seal(&mut bytes, PLACE, HEAD, payload);
        bytes
    }

    #[test]
    fn a_sealed_sector_is_whole_only_at_its_place() {
        let bytes = sealed(b"hello");
        assert_eq!(bytes.len(), SECTOR_BYTES);
        assert_eq!(inspect(PLACE, &bytes), Found::Whole(HEAD));
        assert_eq!(&payload(&bytes)[..5], b"hello");
        assert_eq!(inspect(Place { segment: 3, sector: 8 }, &bytes), Found::Damaged);
        assert_eq!(inspect(Place { segment: 4, sector: 7 }, &bytes), Found::Damaged);
    }

    #[test]
    fn a_wrong_byte_is_damage_or_harmless_and_never_looks_unwritten() {
        let good = sealed(&[]);
        for at in 0..SECTOR_BYTES {
            let in_mark = !(4..TAIL_START).contains(&at);
            for bits in 1..=255u8 {
                let mut bytes = good.clone();
                bytes[at] ^= bits;
                let expected = if in_mark { Found::Whole(HEAD) } else { Found::Damaged };
                assert_eq!(inspect(PLACE, &bytes), expected, "byte {at} bits {bits}");
                mark(&mut bytes);
                assert_eq!(bytes == good, in_mark);
            }
        }
    }

    #[test]
    fn a_write_that_stopped_inside_looks_unfinished_unless_its_content_is_whole() {
        let good = sealed(&[9; PAYLOAD_BYTES]);
        for at in 0..SECTOR_BYTES {
            let mut bytes = good.clone();
            bytes[at..].fill(0);
            let expected = match at {
                0 => Found::Zero,
                _ if at < TAIL_START => Found::Unfinished,
                _ => Found::Whole(HEAD),
            };
            assert_eq!(inspect(PLACE, &bytes), expected, "torn at {at}");
        }
    }
}
