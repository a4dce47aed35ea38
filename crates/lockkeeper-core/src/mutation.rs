//! Bugs that can be put back, one at a time, to see that they are caught. Without the feature `mutations` none of this
//! is compiled in; with it, a thread has to ask for one by name. docs/proof.md has the list and what catches each.

/// A bug that somebody could make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A retry is a new request (S5).
    ForgetRequest,
    /// A refused acquire is forgotten: a late copy of it is a new request (S5).
    ForgetRefusals,
    /// The last in the queue is let in first (S7).
    Overtake,
    /// An expiry is carried out although the session was heard of since it was decided (S3).
    ExpiryIgnoresVersion,
    /// The counter of tokens is not part of snapshots (S1).
    TokenFromMemory,
    /// A release frees the lock whoever holds it (S8).
    ReleaseByAnyone,
    /// A write is accepted whatever its token is.
    StaleWrite,
    /// An entry is acknowledged before it is synced (S10).
    AcknowledgeBeforeSync,
    /// A vote is not on the disk when it is given.
    VoteInMemory,
    /// A renewal is acknowledged without the lease from a majority (S3).
    RenewWithoutLease,
    /// A read is answered without the lease from a majority (S3).
    ReadWithoutLease,
    /// A renewal is acknowledged although an expiry is on its way (S3).
    RenewWhileExpiring,
    /// A new leader gives sessions a quarter of their time instead of all of it (S3).
    ShortTimeAtTakeOver,
    /// A leader that takes office again serves before what it proposed earlier is decided (S3).
    ServeBeforeBarrier,
    /// Answers are given when an entry is proposed, not when it is committed.
    GrantBeforeCommit,
    /// The client counts its deadline from the answer to a renewal, not from its sending (S4).
    DeadlineFromAnswer,
    /// The client's deadline is kept by a clock that people can set (S4).
    WallClock,
    /// The client keeps its guards until it is told that they are lost (S4).
    NoDeadline,
    /// A caller who goes away leaves its request behind.
    ForgetCancel,
    /// A restored table goes on with the tokens and versions of its backup (S1).
    RestoreKeepsTokens,
    /// The leader's lease counts its own promise instead of those that the members gave (S3).
    LeaseIgnoresPromise,
    /// A node goes on serving although its table differs from that of the majority (S13).
    IgnoreDisagreement,
    /// An entry for which the disk has no room is acknowledged all the same (S10).
    AcknowledgeWithoutRoom,
    /// Work that does not fit into its entry is done all the same (S11).
    IgnoreBudget,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 24] = [
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
    ];
}

#[cfg(feature = "mutations")]
mod switch {
    use std::cell::Cell;

    use super::Mutation;

    thread_local! {
        static ON: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Puts a bug back on this thread, or takes it away.
    pub fn put_back(mutation: Option<Mutation>) {
        ON.set(mutation);
    }

    /// Whether this bug is there.
    pub fn is_on(mutation: Mutation) -> bool {
        ON.get() == Some(mutation)
    }
}

#[cfg(not(feature = "mutations"))]
mod switch {
    use super::Mutation;

    /// Whether this bug is there. It is not.
    pub const fn is_on(_: Mutation) -> bool {
        false
    }
}

pub use switch::*;
