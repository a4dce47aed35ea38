//! The deadlines of callers, whatever their protocol (S11).

use std::time::Duration;

/// Deadline of a new connection: to complete its handshake, to send its first bytes and its first request, and to
/// authenticate if required.
pub(crate) const FIRST_BYTES_WITHIN: Duration = Duration::from_secs(10);

/// Deadline of each message: a frame, a body, or a message of a gRPC call or stream, from its first byte to its last one.
pub(crate) const MESSAGE_WITHIN: Duration = Duration::from_secs(10);
