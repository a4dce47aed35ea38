//! Mutation testing of the simulation: each known bug is reintroduced, and some seed must find it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{Mutation, RunOptions, run};

/// The detection of a bug.
#[derive(Debug, Clone)]
pub struct Detection {
    /// The bug.
    pub mutation: Mutation,
    /// Number of seeds needed; `None` if no seed found it.
    pub seeds: Option<u64>,
    /// The checker that found it.
    pub checker: &'static str,
    /// The violation.
    pub violation: String,
}

/// Reintroduces a bug and runs seeds on several threads until one finds it, or up to `seeds_max`. Fails if such a seed has a
/// violation without the bug as well.
pub fn find(mutation: Mutation, seeds_max: u64, duration: Duration, threads: usize) -> io::Result<Detection> {
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
                    match run_with(mutation, seed, duration) {
                        Ok(None) => {}
                        Ok(Some((checker, violation))) => {
                            end.fetch_min(seed, Ordering::Relaxed);
                            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                            if found.as_ref().is_none_or(|(before, ..)| seed < *before) {
                                *found = Some((seed, checker, violation));
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
    let (seeds, checker, violation) = match found {
        Some((seed, checker, violation)) => (Some(seed + 1), checker, violation),
        None => (None, "", String::new()),
    };
    Ok(Detection { mutation, seeds, checker, violation })
}

/// Runs a seed with a bug. Returns the first violation, which must not occur without the bug.
fn run_with(mutation: Mutation, seed: u64, duration: Duration) -> io::Result<Option<(&'static str, String)>> {
    let options = RunOptions { seed, duration, trace: false, mutation: Some(mutation) };
    let violations = run(options)?.violations;
    // A checker's violation is more specific than a liveness failure.
    let specific = violations.iter().find(|(checker, _)| *checker != "alive");
    let Some(found) = specific.or(violations.first()) else { return Ok(None) };
    match run(RunOptions { mutation: None, ..options })?.violations.first() {
        None => Ok(Some(found.clone())),
        Some((checker, violation)) => Err(io::Error::other(format!(
            "seed {seed} has a violation without {mutation:?} as well: {checker}: {violation}"
        ))),
    }
}

/// The test that finds a bug that the simulation cannot observe, with the reason. `None` for a bug that seeds find.
pub fn test_that_finds(mutation: Mutation) -> Option<&'static str> {
    Some(match mutation {
        // Once an expiry is decided, renewals are refused, so a client that the version would save is already past its deadline.
        Mutation::ExpiryIgnoresVersion => "lockkeeper-core/tests/model/bugs.rs",
        // The simulation does not restore backups.
        Mutation::RestoreKeepsTokens => "lockkeeper-core/tests/restore.rs",
        // Only larger tables exhaust a budget.
        Mutation::IgnoreBudget => "lockkeeper-core/tests/work/generated.rs",
        // Only a leader whose followers can never win an election stays without heartbeats.
        Mutation::TransferNeverEnds => "lockkeeper-server/src/raft/hand_over.rs",
        // The clients of the simulation do not use HTTP.
        Mutation::KeepUndelivered => "lockkeeper-server/tests/server/http/disconnect.rs",
        // A node refuses entries on a full disk before they reach the log.
        Mutation::AcknowledgeWithoutRoom => "lockkeeper-server/tests/server/log/store.rs",
        // Only the end of very many sessions shows the order.
        Mutation::ReapAnswersFirst => "lockkeeper-core/tests/work/main.rs",
        // The clients of the simulation do not hand over.
        Mutation::HandOverAnyway => "lockkeeper-core/tests/hand_over.rs",
        _ => return None,
    })
}

/// Describes a bug for the table in docs/proof.md.
pub fn description(mutation: Mutation) -> &'static str {
    match mutation {
        Mutation::ForgetRequest => "a retry counts as a new request (S5)",
        Mutation::ForgetRefusals => {
            "a refused acquire is forgotten, so that a late copy of it is granted (S5)"
        }
        Mutation::Overtake => "the last in the queue is admitted first (S7)",
        Mutation::ExpiryIgnoresVersion => "an expiry is applied although the session was renewed since (S3)",
        Mutation::TokenFromMemory => "the token counter is missing in the snapshot (S1)",
        Mutation::ReleaseByAnyone => "a release frees the lock, whoever holds it (S8)",
        Mutation::StaleWrite => "a write is accepted whatever its token",
        Mutation::AcknowledgeBeforeSync => "an entry is acknowledged before it is synced (S10)",
        Mutation::VoteInMemory => "a vote is not on disk when it is given",
        Mutation::RenewWithoutLease => "a renewal is acknowledged without a quorum lease (S3)",
        Mutation::ReadWithoutLease => "a read is answered without a quorum lease (S3)",
        Mutation::RenewWhileExpiring => "a renewal is acknowledged while an expiry is in flight (S3)",
        Mutation::ShortTimeAtTakeOver => "a new leader gives sessions a quarter of their TTL (S3)",
        Mutation::ServeBeforeBarrier => {
            "a leader serves again before its earlier proposals of the same term are decided (S3)"
        }
        Mutation::GrantBeforeCommit => "answers are sent when an entry is proposed, not when it is committed",
        Mutation::DeadlineFromAnswer => "the client counts its deadline from the answer to a renewal (S4)",
        Mutation::WallClock => "the client's deadline uses a clock that people can set (S4)",
        Mutation::NoDeadline => "the client keeps its guards until the cell reports their loss (S4)",
        Mutation::ForgetCancel => "a caller that goes away leaves its request in the queue",
        Mutation::RestoreKeepsTokens => "a restored cell continues with the tokens of its backup (S1)",
        Mutation::LeaseIgnoresPromise => "a leader's lease ignores a follower's shorter promise (S3)",
        Mutation::IgnoreDisagreement => "a node serves although its table differs from the majority's (S13)",
        Mutation::AcknowledgeWithoutRoom => "an entry is acknowledged although the disk is full (S10)",
        Mutation::IgnoreBudget => "work beyond the budget of its entry is done (S11)",
        Mutation::ForgetInvalid => "an acquire that was refused as invalid is forgotten (S5)",
        Mutation::ForgetLimits => "an acquire that was refused because of a quota is forgotten (S5)",
        Mutation::ForgetPromise => "a restarted node forgets its longer promise (S3)",
        Mutation::VersionRaisedEarly => "the cell version is raised although a member is silent",
        Mutation::TransferNeverEnds => "a failed leadership transfer leaves a leader without heartbeats",
        Mutation::TimeNotLogged => "a quiet cell does not log cell time (S2)",
        Mutation::KeepUndelivered => "a grant whose caller disconnected before the answer is kept",
        Mutation::ReapAnswersFirst => {
            "the answers of an ended session are forgotten before its locks are freed (S11)"
        }
        Mutation::HandOverAnyway => "a hand-over frees the lock although other holders block the candidate",
        Mutation::SaveDifferingTable => "a node whose table differs replaces its last good snapshot (S13)",
        Mutation::TimeIgnoresDistance => {
            "the interval at which cell time is logged ignores the distance of the members (S2)"
        }
    }
}
