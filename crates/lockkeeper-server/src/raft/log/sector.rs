//! The sector: the unit that a disk writes completely or not at all, and the granularity of torn writes.
//!
//! ```text
//! 0    head mark   4 bytes, never zero
//! 4    crc32       of segment number, sector number, and bytes 8..508
//! 8    frame       u64, from 1: number of its frame
//! 16   part        u32: index of this sector in the frame
//! 20   parts       u32: number of sectors of the frame
//! 24   payload     484 bytes
//! 508  tail mark   4 bytes, never zero
//! ```
//!
//! Segments are zero-filled before use, so a sector shows whether it was ever written: all zero means never, a
//! mark that is still zero means that the write was interrupted. A sector that was written completely and then
//! corrupted keeps both marks. That difference decides what may be truncated (see `recover`).
//! The marks are outside the checksum and prove nothing else: a tear or a wrong byte within a mark leaves the
//! content intact, and the sector counts as whole.
//! The position is part of the checksum, so that a misplaced write is detected.

use super::disk::SECTOR_BYTES;

const HEAD_MARK: [u8; 4] = *b"Lk\x01[";
const TAIL_MARK: [u8; 4] = *b"]Lk\x01";
const PAYLOAD_START: usize = 24;
const TAIL_START: usize = SECTOR_BYTES - 4;
/// Bytes of a frame that one sector carries.
pub(crate) const PAYLOAD_BYTES: usize = TAIL_START - PAYLOAD_START;

/// Position of a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: u64,
    pub(crate) sector: u32,
}

/// Header of a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) frame: u64,
    pub(crate) part: u32,
    pub(crate) parts: u32,
}

/// State of a sector on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SectorState {
    /// Never written.
    Zero,
    /// Partly written: one of its marks is still zero.
    Unfinished,
    /// Completely written and intact.
    Whole(Header),
    /// Completely written and changed since.
    Damaged,
}

/// Appends one sector to `out`. `payload` is at most [`PAYLOAD_BYTES`] long; the rest is zero.
pub(crate) fn seal(out: &mut Vec<u8>, place: Place, header: Header, payload: &[u8]) {
    debug_assert!(payload.len() <= PAYLOAD_BYTES && header.frame > 0 && header.part < header.parts);
    let start = out.len();
    out.extend_from_slice(&HEAD_MARK);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&header.frame.to_le_bytes());
    out.extend_from_slice(&header.part.to_le_bytes());
    out.extend_from_slice(&header.parts.to_le_bytes());
    out.extend_from_slice(payload);
    out.resize(start + TAIL_START, 0);
    let crc = checksum(place, &out[start..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&TAIL_MARK);
}

/// Classifies one sector. `bytes` is [`SECTOR_BYTES`] long.
pub(crate) fn inspect(place: Place, bytes: &[u8]) -> SectorState {
    if is_zero(bytes) {
        return SectorState::Zero;
    }
    let header = Header {
        frame: u64::from_le_bytes(array(bytes, 8)),
        part: u32::from_le_bytes(array(bytes, 16)),
        parts: u32::from_le_bytes(array(bytes, 20)),
    };
    let crc = u32::from_le_bytes(array(bytes, 4));
    if crc == checksum(place, bytes) && header.frame > 0 && header.part < header.parts {
        SectorState::Whole(header)
    } else if is_zero(&bytes[..4]) || is_zero(&bytes[TAIL_START..]) {
        SectorState::Unfinished
    } else {
        SectorState::Damaged
    }
}

/// Restores the marks of a whole sector.
pub(crate) fn restore_marks(bytes: &mut [u8]) {
    bytes[..4].copy_from_slice(&HEAD_MARK);
    bytes[TAIL_START..].copy_from_slice(&TAIL_MARK);
}

/// Returns the part of the frame that a sector carries.
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

/// Returns `N` bytes from `start`. Panics if there are fewer.
pub(crate) fn array<const N: usize>(bytes: &[u8], start: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[start..start + N]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { segment: 3, sector: 7 };
    const HEAD: Header = Header { frame: 1, part: 0, parts: 1 };

    fn sealed(payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        seal(&mut bytes, PLACE, HEAD, payload);
        bytes
    }

    #[test]
    fn a_sealed_sector_is_whole_only_at_its_own_position() {
        let bytes = sealed(b"hello");
        assert_eq!(bytes.len(), SECTOR_BYTES);
        assert_eq!(inspect(PLACE, &bytes), SectorState::Whole(HEAD));
        assert_eq!(&payload(&bytes)[..5], b"hello");
        assert_eq!(inspect(Place { segment: 3, sector: 8 }, &bytes), SectorState::Damaged);
        assert_eq!(inspect(Place { segment: 4, sector: 7 }, &bytes), SectorState::Damaged);
    }

    #[test]
    fn a_corrupted_byte_never_makes_a_sector_look_unwritten() {
        let good = sealed(&[]);
        for at in 0..SECTOR_BYTES {
            let in_mark = !(4..TAIL_START).contains(&at);
            for bits in 1..=255u8 {
                let mut bytes = good.clone();
                bytes[at] ^= bits;
                let expected = if in_mark { SectorState::Whole(HEAD) } else { SectorState::Damaged };
                assert_eq!(inspect(PLACE, &bytes), expected, "byte {at} bits {bits}");
                restore_marks(&mut bytes);
                assert_eq!(bytes == good, in_mark);
            }
        }
    }

    #[test]
    fn an_interrupted_write_looks_unfinished_unless_its_content_is_complete() {
        let good = sealed(&[9; PAYLOAD_BYTES]);
        for at in 0..SECTOR_BYTES {
            let mut bytes = good.clone();
            bytes[at..].fill(0);
            let expected = match at {
                0 => SectorState::Zero,
                _ if at < TAIL_START => SectorState::Unfinished,
                _ => SectorState::Whole(HEAD),
            };
            assert_eq!(inspect(PLACE, &bytes), expected, "torn at {at}");
        }
    }
}
