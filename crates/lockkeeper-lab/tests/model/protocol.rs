//! The rules of the protocol, each with a switch that turns it off.

/// TTL of a session, in ticks.
pub(crate) const TTL: i8 = 4;
/// Ticks for which a member does not vote after a heartbeat.
pub(crate) const PROMISE: i8 = 3;
/// Bounds of a clock reading, relative to now.
pub(crate) const SLOW: i8 = 0;
pub(crate) const FAST: i8 = 1;
/// Maximum difference of a measured duration between two processes. Every process that relies on a duration subtracts it.
pub(crate) const DRIFT: i8 = 2 * (FAST - SLOW);

/// The protocol, possibly with one rule switched off.
#[derive(Debug, Clone)]
pub(crate) struct Protocol {
    /// Maximum number of terms: one more than the number of fail-overs.
    pub(crate) terms_max: u8,
    /// Whether nodes restart.
    pub(crate) restarts: bool,
    /// A leader answers renewals only while it can prove that no other leader exists (S3).
    pub(crate) quorum_lease: bool,
    /// The TTL that a new leader gives every session (S3).
    pub(crate) ttl_from_new_leader: i8,
    /// An expiry names the version that the leader saw, and a stale one does nothing (S3).
    pub(crate) version_checked: bool,
    /// An expiry that was decided in one term of leadership is not proposed in another.
    pub(crate) queue_ends_with_term: bool,
    /// A client counts its deadline from sending the renewal, not from the answer (S4).
    pub(crate) deadline_from_sending: bool,
    /// A client stops this long before the end of its TTL (S4).
    pub(crate) client_drift: i8,
    /// A restarted node keeps a promise that it may have given before.
    pub(crate) promise_survives_restart: bool,
    /// Tokens are counted in the log, not by each leader (S1).
    pub(crate) tokens_in_log: bool,
}

impl Protocol {
    /// The correct protocol.
    pub(crate) fn correct() -> Protocol {
        Protocol {
            terms_max: 2,
            restarts: false,
            quorum_lease: true,
            ttl_from_new_leader: TTL,
            version_checked: true,
            queue_ends_with_term: true,
            deadline_from_sending: true,
            client_drift: DRIFT,
            promise_survives_restart: true,
            tokens_in_log: true,
        }
    }
}
