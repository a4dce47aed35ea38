//! The proof that the simulation sees: each bug is put back, and some seed must find it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{Mutation, Setting, run};

/// How a bug was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The bug.
    pub mutation: Mutation,
    /// How many seeds it took; `None` if none found it.
    pub seeds: Option<u64>,
    /// The checker that saw it.
    pub checker: &'static str,
    /// What it said.
    pub words: String,
}

/// Puts a bug back and runs up to so many seeds until one finds it, on so many threads.
pub fn find(mutation: Mutation, seeds_max: u64, lasts: Duration, threads: usize) -> io::Result<Found> {
    let next = AtomicU64::new(0);
    let end = AtomicU64::new(seeds_max);
    let found: Mutex<Option<(u64, &'static str, String)>> = Mutex::new(None);
    let failed: Mutex<Option<io::Error>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end.load(Ordering::Relaxed) {
                        return;
                    }
                    match run(Setting { seed, lasts, tells: false, mutation: Some(mutation) }) {
                        Ok(outcome) => {
                            // What a checker saw says more than that something stood still.
                            let first = outcome.violations.iter().find(|(checker, _)| *checker != "alive");
                            let Some((checker, words)) = first.or(outcome.violations.first()) else {
                                continue;
                            };
                            end.fetch_min(seed, Ordering::Relaxed);
                            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                            if found.as_ref().is_none_or(|(before, ..)| seed < *before) {
                                *found = Some((seed, checker, words.clone()));
                            }
                        }
                        Err(error) => {
                            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                            return;
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (seeds, checker, words) = match found {
        Some((seed, checker, words)) => (Some(seed + 1), checker, words),
        None => (None, "", String::new()),
    };
    Ok(Found { mutation, seeds, checker, words })
}

/// Whether anybody outside can see the bug. One is behind another wall: from the moment in which an expiry is decided,
/// renewals are refused, so whoever the version would save is past its deadline and holds nothing. The table's own
/// tests see it (lockkeeper-core/tests/model/bugs.rs). Another needs a restore from a backup, which the simulation does
/// not do (lockkeeper-core/tests/restore.rs sees it). A third one shows only in tables that are larger than those of a
/// simulation (lockkeeper-core/tests/work sees it).
pub fn can_be_seen(mutation: &Mutation) -> bool {
    !matches!(
        mutation,
        Mutation::ExpiryIgnoresVersion | Mutation::RestoreKeepsTokens | Mutation::IgnoreBudget
    )
}

/// What each bug is, for the table: the rule that it breaks, in words.
pub fn in_words(mutation: Mutation) -> &'static str {
    match mutation {
        Mutation::ForgetRequest => "a retry is taken for a new request (S5)",
        Mutation::ForgetRefusals => {
            "a refused acquire is forgotten, and a late copy of it is a new request (S5)"
        }
        Mutation::Overtake => "the last in the queue is let in first (S7)",
        Mutation::ExpiryIgnoresVersion => {
            "an expiry is carried out although the session was heard of since (S3)"
        }
        Mutation::TokenFromMemory => "the counter of tokens is not in the snapshot (S1)",
        Mutation::ReleaseByAnyone => "a release frees the lock whoever holds it (S8)",
        Mutation::StaleWrite => "a write is accepted whatever its token",
        Mutation::AcknowledgeBeforeSync => "an entry is acknowledged before it is synced (S10)",
        Mutation::VoteInMemory => "a vote is not on the disk when it is given",
        Mutation::RenewWithoutLease => "a renewal is acknowledged without the lease from a majority (S3)",
        Mutation::ReadWithoutLease => "a read is answered without the lease from a majority (S3)",
        Mutation::RenewWhileExpiring => "a renewal is acknowledged while an expiry is on its way (S3)",
        Mutation::ShortTimeAtTakeOver => "a new leader gives sessions a quarter of their time (S3)",
        Mutation::ServeBeforeBarrier => {
            "a leader serves again before what it proposed earlier in the same term is decided (S3)"
        }
        Mutation::GrantBeforeCommit => {
            "answers are given when an entry is proposed, not when it is committed"
        }
        Mutation::DeadlineFromAnswer => "the client counts its deadline from the answer to a renewal (S4)",
        Mutation::WallClock => "the client's deadline is kept by a clock that people can set (S4)",
        Mutation::NoDeadline => "the client keeps its guards until it is told that they are lost (S4)",
        Mutation::ForgetCancel => "a caller who goes away leaves its request behind",
        Mutation::RestoreKeepsTokens => "a restored cell goes on with the tokens of its backup (S1)",
        Mutation::LeaseIgnoresPromise => "the leader's lease ignores a follower's shorter promise (S3)",
        Mutation::IgnoreDisagreement => {
            "a node goes on serving although its table differs from that of the majority (S13)"
        }
        Mutation::AcknowledgeWithoutRoom => {
            "an entry is acknowledged although the disk has no room for it (S10)"
        }
        Mutation::IgnoreBudget => "work that does not fit into its entry is done all the same (S11)",
    }
}
