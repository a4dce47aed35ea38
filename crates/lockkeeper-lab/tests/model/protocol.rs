//! What the protocol promises by the clock, and the ways in which it could be wrong.

/// Ticks that a session lives without a renewal.
pub(crate) const TTL: i8 = 4;
/// Ticks for which a member votes for nobody after it has heard the leader.
pub(crate) const PROMISE: i8 = 3;
/// Whoever reads its clock reads something between these two, counted from now.
pub(crate) const SLOW: i8 = 0;
pub(crate) const FAST: i8 = 1;
/// So a span between two readings can differ by this from what another process reads: it is what everybody who relies
/// on a span subtracts.
pub(crate) const DRIFT: i8 = 2 * (FAST - SLOW);

/// The protocol, or one with a single rule taken out.
#[derive(Debug, Clone)]
pub(crate) struct Protocol {
    /// Most terms: one more than there are fail-overs.
    pub(crate) terms_max: u8,
    /// Nodes are started anew now and then.
    pub(crate) restarts: bool,
    /// A leader answers renewals only while it can prove that no other leader exists (S3).
    pub(crate) quorum_lease: bool,
    /// What a new leader gives every session (S3).
    pub(crate) given_by_new_leader: i8,
    /// An expiry names the version that the leader saw, and a stale one does nothing (S3).
    pub(crate) version_checked: bool,
    /// What was decided in one time in office is not proposed in another.
    pub(crate) queue_ends_with_office: bool,
    /// A client counts from when it asked, not from when it was answered (S4).
    pub(crate) counted_from_sending: bool,
    /// A client stops this long before its time is over (S4).
    pub(crate) client_drift: i8,
    /// A node that was started anew keeps the promise that it may have given before.
    pub(crate) promise_outlives_restart: bool,
    /// Tokens are counted in the log, not by each leader (S1).
    pub(crate) tokens_in_log: bool,
}

impl Protocol {
    /// As it is.
    pub(crate) fn whole() -> Protocol {
        Protocol {
            terms_max: 2,
            restarts: false,
            quorum_lease: true,
            given_by_new_leader: TTL,
            version_checked: true,
            queue_ends_with_office: true,
            counted_from_sending: true,
            client_drift: DRIFT,
            promise_outlives_restart: true,
            tokens_in_log: true,
        }
    }
}
