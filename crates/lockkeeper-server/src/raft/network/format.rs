//! Wrapping of raft's messages in requests and answers, by the format of the connection. Format 1 does not wrap them.

use bytes::Bytes;
use lockkeeper_api::peer::peer_answer::Kind as AnswerKind;
use lockkeeper_api::peer::peer_request::Kind;

/// Returns the raft message in a request.
fn request_body(kind: &mut Kind) -> Option<&mut Bytes> {
    match kind {
        Kind::Append(append) | Kind::Heartbeat(append) => Some(&mut append.body),
        Kind::Vote(body) | Kind::PreVote(body) | Kind::TransferLeader(body) | Kind::Goodbye(body) => {
            Some(body)
        }
        Kind::Ping(_) => None,
    }
}

/// Returns the raft message in an answer.
fn answer_body(kind: &mut AnswerKind) -> Option<&mut Bytes> {
    match kind {
        AnswerKind::Append(append) => Some(&mut append.body),
        AnswerKind::Body(body) => Some(body),
        AnswerKind::Pong(_) => None,
    }
}

pub(super) fn wrap_request(format: u32, kind: &mut Kind) {
    request_body(kind).into_iter().for_each(|body| wrap(format, body));
}

pub(super) fn unwrap_request(format: u32, kind: &mut Kind) -> Result<(), String> {
    request_body(kind).map_or(Ok(()), |body| unwrap(format, body))
}

pub(super) fn wrap_answer(format: u32, kind: &mut AnswerKind) {
    answer_body(kind).into_iter().for_each(|body| wrap(format, body));
}

pub(super) fn unwrap_answer(format: u32, kind: &mut AnswerKind) -> Result<(), String> {
    answer_body(kind).map_or(Ok(()), |body| unwrap(format, body))
}

/// Format 2, which exists only in test builds, appends a checksum.
#[cfg(feature = "next-version")]
fn wrap(format: u32, body: &mut Bytes) {
    if format >= 2 {
        *body = [&body[..], &crc32fast::hash(body).to_le_bytes()].concat().into();
    }
}

#[cfg(feature = "next-version")]
fn unwrap(format: u32, body: &mut Bytes) -> Result<(), String> {
    if format < 2 {
        return Ok(());
    }
    let content = body.len().checked_sub(4).ok_or("a message in format 2 has no checksum")?;
    let checksum = body.split_off(content);
    match checksum[..] == crc32fast::hash(body).to_le_bytes() {
        true => Ok(()),
        false => Err("the checksum of a message in format 2 does not match".to_owned()),
    }
}

#[cfg(not(feature = "next-version"))]
fn wrap(_format: u32, _body: &mut Bytes) {}

#[cfg(not(feature = "next-version"))]
fn unwrap(_format: u32, _body: &mut Bytes) -> Result<(), String> {
    Ok(())
}

#[cfg(all(test, feature = "next-version"))]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_message_is_read_in_its_own_format() {
        for format in [1, 2] {
            let mut kind = Kind::Vote(Bytes::from_static(b"a vote"));
            wrap_request(format, &mut kind);
            let is_plain = matches!(&kind, Kind::Vote(body) if &body[..] == b"a vote");
            assert_eq!(is_plain, format == 1);
            unwrap_request(format, &mut kind).expect("read");
            assert!(matches!(&kind, Kind::Vote(body) if &body[..] == b"a vote"));
        }
        for damaged in [&b""[..], b"abc", b"a vote without a checksum"] {
            assert!(unwrap_answer(2, &mut AnswerKind::Body(Bytes::copy_from_slice(damaged))).is_err());
        }
    }
}
