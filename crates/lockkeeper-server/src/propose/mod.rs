//! On the leader: drains all that is queued into one log entry and stamps it with cell time.
//!
//! An entry costs a hundred times what an operation in it costs, so whatever has been queued while the last
//! entries were on their way goes into the next one together.

mod pace;
mod queue;
pub(crate) mod space;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkeeper_core::Batch;
#[cfg(feature = "simulation")]
use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_net::utc;

use self::pace::Pace;
pub use self::queue::CommandQueue;
use crate::callers::Caller;
use crate::failure::Failure;
use crate::leader_term::Tenure;
use crate::raft::encoded_batch::EncodedBatch;
use crate::raft::log::LogStore;
use crate::raft::{Consensus, types::Proposal};
use crate::shared::Shared;
use crate::trace;

/// Most entries in flight. Two: while one is being made durable, the next is prepared.
const ENTRIES_IN_FLIGHT_MAX: usize = 2;
/// A command of the node itself is proposed again after this time, if its entry failed.
const PROPOSE_AGAIN: Duration = Duration::from_millis(50);
/// While the disk is full, how often its space is checked.
const SPACE_CHECK: Duration = Duration::from_millis(200);

/// Proposes until the node stops.
pub(crate) async fn run(shared: Arc<Shared>, consensus: Consensus, log: LogStore) {
    let mut under_way = FuturesUnordered::new();
    let mut sequence = 0;
    let mut pace = Pace::default();
    let mut waits_for_room = false;
    loop {
        tokio::select! {
            biased;
            Some((entry, result)) = under_way.next(), if !under_way.is_empty() => {
                if let Err(failure) = result {
                    UnderWay::fail(entry, &shared, &failure);
                }
            }
            () = shared.queue.filled(), if under_way.len() < ENTRIES_IN_FLIGHT_MAX => {}
            // What is new is refused before it is queued, so nothing else would notice that there is room.
            () = tokio::time::sleep(SPACE_CHECK), if waits_for_room || shared.queue.trouble().is_some() => {}
        }
        space::check(&shared, &consensus, &log);
        while under_way.len() < ENTRIES_IN_FLIGHT_MAX {
            shared.queue.gather().await;
            let pause = pace.pause(&consensus);
            if !pause.is_zero() && shared.queue.queued() > 0 {
                tokio::time::sleep(pause).await;
                shared.metrics.members.proposal_pause_seconds.inc_by(pause.as_secs_f64());
            }
            space::check(&shared, &consensus, &log);
            // What is queued in front of the log delays nothing else; in the log it would block a vote.
            waits_for_room = !log.has_room_for(0, shared.queue.next_entry_bytes());
            if waits_for_room {
                break;
            }
            let Some((commands, callers)) = shared.queue.take_what_fits() else { break };
            let (now, tenure) = match shared.leader_term.stamp() {
                Ok(stamp) => stamp,
                Err(failure) => {
                    for caller in callers {
                        caller.deliver(Err(failure.clone()));
                    }
                    continue;
                }
            };
            sequence += 1;
            shared.metrics.batch_commands.observe(commands.len() as f64);
            let batch = Arc::new(EncodedBatch::new(Batch { now, utc_ms: utc::now_ms(), commands }));
            #[cfg(feature = "simulation")]
            let callers = answer_before_commit(&shared, &batch, callers);
            let span = trace::batch(&callers);
            shared.callers.expect(sequence, callers);
            let proposal = Proposal { proposer: shared.proposer_id, sequence, batch: batch.clone() };
            let entry = UnderWay { sequence, tenure, batch };
            match consensus.propose(proposal).await {
                Ok(done) => under_way.push(async move {
                    let done = done.await;
                    drop(span);
                    (entry, done)
                }),
                Err(failure) => entry.fail(&shared, &failure),
            }
        }
    }
}

/// The bug `Mutation::GrantBeforeCommit`, if it is put back: answers callers before the entry is committed.
#[cfg(feature = "simulation")]
fn answer_before_commit(shared: &Shared, batch: &Batch, callers: Vec<Caller>) -> Vec<Caller> {
    if !mutation::is_on(Mutation::GrantBeforeCommit) {
        return callers;
    }
    let mut ahead = shared.table().clone();
    let next = ahead.applied() + 1;
    if let Ok(applied) = ahead.apply(next, batch) {
        for (caller, answer) in callers.into_iter().zip(applied.answers) {
            shared.callers.answer(caller, answer);
        }
    }
    Vec::new()
}

/// An entry that was proposed and is not applied yet.
struct UnderWay {
    sequence: u64,
    tenure: Tenure,
    batch: Arc<EncodedBatch>,
}

impl UnderWay {
    /// The entry did not get into the log, or nobody knows. Its callers learn of it; what the node itself asked is asked
    /// again: an expiry, a tick or a give-back that is lost would leave a session, a wait or a lock as it is for ever.
    /// All of them do nothing if they have happened already.
    fn fail(self, shared: &Arc<Shared>, failure: &Failure) {
        let mut own = Vec::new();
        let callers = shared.callers.take(self.sequence).unwrap_or_default();
        for (command, caller) in self.batch.commands.iter().zip(callers) {
            match caller {
                Caller::Nobody => own.push(command.clone()),
                caller => drop(caller.deliver(Err(failure.clone()))),
            }
        }
        if own.is_empty() {
            return;
        }
        let shared = shared.clone();
        tokio::spawn(async move {
            tokio::time::sleep(PROPOSE_AGAIN).await;
            // Only in the tenure that decided it: the next one gives every session its full time again, so an expiry of
            // this one would break renewals that have been acknowledged since (S3).
            if shared.leader_term.tenure() == Some(self.tenure) {
                own.into_iter().for_each(|command| shared.submit(command, Caller::Nobody));
            }
        });
    }
}
