//! Mutations: bugs that can be put back, one at a time, to prove that the checkers catch them. Compiled in only with the
//! feature `mutations`, and off until a thread turns one on. docs/proof.md lists them with what catches each.

/// A bug that can be put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A retry is treated as a new request (S5).
    ForgetRequest,
    /// A refused acquire is forgotten: a late copy of it is treated as a new request (S5).
    ForgetRefusals,
    /// The last request in the queue is granted first (S7).
    Overtake,
    /// An expiry is executed although the session was active since it was decided (S3).
    ExpiryIgnoresVersion,
    /// The token counter is missing from snapshots (S1).
    TokenFromMemory,
    /// A release frees the lock regardless of its holder (S8).
    ReleaseByAnyone,
    /// A write is accepted regardless of its token.
    StaleWrite,
    /// An entry is acknowledged before it is synced (S10).
    AcknowledgeBeforeSync,
    /// A vote is given before it is on disk.
    VoteInMemory,
    /// A renewal is acknowledged without the lease from a majority (S3).
    RenewWithoutLease,
    /// A read is answered without the lease from a majority (S3).
    ReadWithoutLease,
    /// A renewal is acknowledged while an expiry is in flight (S3).
    RenewWhileExpiring,
    /// A new leader gives sessions a quarter of their TTL (S3).
    ShortTimeAtTakeOver,
    /// A re-elected leader serves before its earlier proposals are decided (S3).
    ServeBeforeBarrier,
    /// Answers are given when an entry is proposed, not when it is committed.
    GrantBeforeCommit,
    /// The client counts its deadline from the receipt of a renewal's answer, not from the send time (S4).
    DeadlineFromAnswer,
    /// The client's deadline uses the wall clock (S4).
    WallClock,
    /// The client keeps its guards until the server reports them lost (S4).
    NoDeadline,
    /// A caller that goes away does not cancel its request.
    ForgetCancel,
    /// A restored table continues with the tokens and versions of its backup (S1).
    RestoreKeepsTokens,
    /// The leader's lease counts its own promise instead of the members' promises (S3).
    LeaseIgnoresPromise,
    /// A node keeps serving although its table differs from the majority's (S13).
    IgnoreDisagreement,
    /// An entry is acknowledged although the disk has no room for it (S10).
    AcknowledgeWithoutRoom,
    /// Work beyond the budget of its entry is done anyway (S11).
    IgnoreBudget,
    /// A request that was refused as invalid or because of a limit is forgotten, unlike other refusals (S5).
    ForgetInvalid,
    /// A request that was refused because of a limit is forgotten, unlike other refusals (S5).
    ForgetLimits,
    /// A restarted node forgets the longer promise of its last process (S3).
    ForgetPromise,
    /// The cell version is raised although a member does not answer.
    VersionRaisedEarly,
    /// A failed leadership transfer never ends: the leader sends no heartbeats.
    TransferNeverEnds,
    /// A quiet cell does not log cell time (S2).
    TimeNotLogged,
    /// A grant whose caller disconnected before the answer was sent is kept.
    KeepUndelivered,
    /// The answers and scopes of an ended session are forgotten before its locks are freed (S11).
    ReapAnswersFirst,
    /// A hand-over frees the lock although other holders block the candidate, which keeps waiting.
    HandOverAnyway,
    /// A node whose table differs replaces its last good snapshot (S13).
    SaveDifferingTable,
    /// The interval at which cell time is logged ignores the distance of the members (S2).
    TimeIgnoresDistance,
}

impl Mutation {
    /// All mutations.
    pub const ALL: [Mutation; 35] = [
        Mutation::ForgetRequest,
        Mutation::ForgetRefusals,
        Mutation::Overtake,
        Mutation::ExpiryIgnoresVersion,
        Mutation::TokenFromMemory,
        Mutation::ReleaseByAnyone,
        Mutation::StaleWrite,
        Mutation::AcknowledgeBeforeSync,
        Mutation::VoteInMemory,
        Mutation::RenewWithoutLease,
        Mutation::ReadWithoutLease,
        Mutation::RenewWhileExpiring,
        Mutation::ShortTimeAtTakeOver,
        Mutation::ServeBeforeBarrier,
        Mutation::GrantBeforeCommit,
        Mutation::DeadlineFromAnswer,
        Mutation::WallClock,
        Mutation::NoDeadline,
        Mutation::ForgetCancel,
        Mutation::RestoreKeepsTokens,
        Mutation::LeaseIgnoresPromise,
        Mutation::IgnoreDisagreement,
        Mutation::AcknowledgeWithoutRoom,
        Mutation::IgnoreBudget,
        Mutation::ForgetInvalid,
        Mutation::ForgetLimits,
        Mutation::ForgetPromise,
        Mutation::VersionRaisedEarly,
        Mutation::TransferNeverEnds,
        Mutation::TimeNotLogged,
        Mutation::KeepUndelivered,
        Mutation::ReapAnswersFirst,
        Mutation::HandOverAnyway,
        Mutation::SaveDifferingTable,
        Mutation::TimeIgnoresDistance,
    ];
}

#[cfg(feature = "mutations")]
mod switch {
    use std::cell::Cell;

    use super::Mutation;

    thread_local! {
        static ON: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Sets the mutation of this thread.
    pub fn put_back(mutation: Option<Mutation>) {
        ON.set(mutation);
    }

    /// Whether this mutation is on.
    pub fn is_on(mutation: Mutation) -> bool {
        ON.get() == Some(mutation)
    }
}

#[cfg(not(feature = "mutations"))]
mod switch {
    use super::Mutation;

    /// Always false without the feature.
    pub const fn is_on(_: Mutation) -> bool {
        false
    }
}

pub use switch::*;
