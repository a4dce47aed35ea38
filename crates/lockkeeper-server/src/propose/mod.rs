//! The proposer. On the leader it drains the queue into one log entry (group commit) and stamps the entry with cell time.
//!
//! An entry costs a hundred times as much as an operation in it, so everything that is queued while earlier entries are in
//! flight goes into the next one together.

mod pace;
mod queue;
pub(crate) mod space;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
#[cfg(feature = "simulation")]
use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::{Batch, CellTime};
use lockkeeper_net::utc;

use self::pace::Pace;
pub use self::queue::CommandQueue;
use self::queue::ENTRY_BYTES_MAX;
use crate::effects::callers::Caller;
use crate::failure::Failure;
use crate::leader::term::Tenure;
use crate::raft::encoded_batch::EncodedBatch;
use crate::raft::log::{LogStore, Room};
use crate::raft::{Consensus, types::Proposal};
use crate::shared::Shared;
use crate::trace;

/// Most entries in flight. With two, the next one is prepared while one is being synced.
const ENTRIES_IN_FLIGHT_MAX: usize = 2;
/// A command of the node itself is proposed again after this time if its entry failed.
const REPROPOSE_AFTER: Duration = Duration::from_millis(50);
/// Size of an entry that fits into the last of the space.
const SMALL_ENTRY_BYTES: usize = 4 << 10;
/// While disks are full, how often their space is checked.
const SPACE_CHECK: Duration = Duration::from_millis(200);

/// Proposes entries until the node stops.
pub(crate) async fn run(shared: Arc<Shared>, consensus: Consensus, log: LogStore) {
    let mut in_flight = FuturesUnordered::new();
    let mut sequence = 0;
    let mut pace = Pace::default();
    let mut room = Room::Yes;
    loop {
        tokio::select! {
            biased;
            Some((entry, result)) = in_flight.next(), if !in_flight.is_empty() => {
                if let Err(failure) = result {
                    InFlightEntry::fail(entry, &shared, &failure);
                }
            }
            () = shared.queue.filled(), if in_flight.len() < ENTRIES_IN_FLIGHT_MAX => {}
            // New commands are refused before they are queued, so nothing else would notice that there is room again.
            () = tokio::time::sleep(SPACE_CHECK), if room != Room::Yes || shared.queue.is_short() => {}
            () = log.segment_attempted(), if room != Room::Yes => {}
        }
        let mut is_tight = space::check(&shared, &consensus, &log);
        while in_flight.is_empty() || (in_flight.len() < ENTRIES_IN_FLIGHT_MAX && !is_tight) {
            shared.queue.gather().await;
            let pause = pace.pause(&consensus);
            if !pause.is_zero() && shared.queue.queued() > 0 {
                tokio::time::sleep(pause).await;
                shared.metrics.members.proposal_pause_seconds.inc_by(pause.as_secs_f64());
            }
            is_tight = space::check(&shared, &consensus, &log);
            if is_tight && !in_flight.is_empty() {
                break;
            }
            // A command that waits in this queue delays nothing else; an entry that waits in the log would block a vote.
            let (fits, bytes_max) = room_for_next(&shared, &log);
            room = fits;
            if room != Room::Yes {
                break;
            }
            let Some((mut commands, mut callers)) = shared.queue.take_admissible(bytes_max) else { break };
            let (now, tenure) = match stamp(&shared, &consensus) {
                Ok(stamp) => stamp,
                Err(failure) => {
                    for caller in callers {
                        caller.deliver(Err(failure.clone()));
                    }
                    continue;
                }
            };
            if is_tight {
                (commands, callers) = space::keep_useful(&shared, &consensus, commands, callers);
                if commands.is_empty() {
                    // A long queue of such commands must not keep the thread from everything else.
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            sequence += 1;
            shared.metrics.batch_commands.observe(commands.len() as f64);
            let batch = Arc::new(EncodedBatch::new(Batch { now, utc_ms: utc::now_ms(), commands }));
            #[cfg(feature = "simulation")]
            let callers = answer_before_commit(&shared, &batch, callers);
            let span = trace::batch(&callers);
            shared.callers.expect(sequence, callers);
            let proposal = Proposal { proposer: shared.proposer_id, sequence, batch: batch.clone() };
            let entry = InFlightEntry { sequence, tenure, batch };
            match consensus.propose(proposal).await {
                Ok(done) => in_flight.push(async move {
                    let done = done.await;
                    drop(span);
                    (entry, done)
                }),
                Err(failure) => entry.fail(&shared, &failure),
            }
        }
    }
}

/// Returns whether there is room for the next entry, and its maximum size. On a full disk it may have to be small: many useless
/// commands in the queue must not keep a release behind them from the log.
fn room_for_next(shared: &Shared, log: &LogStore) -> (Room, usize) {
    let queued = shared.queue.next_entry_bytes();
    match log.room_for(0, queued) {
        Room::No if queued > SMALL_ENTRY_BYTES => {
            // An entry is closed by the command that reaches the maximum.
            (log.room_for(0, 2 * SMALL_ENTRY_BYTES), SMALL_ENTRY_BYTES)
        }
        room => (room, ENTRY_BYTES_MAX),
    }
}

/// Returns the cell time of the next entry, if this node may propose it: it serves as the leader, and no difference of tables
/// is known that would stop it (S13).
fn stamp(shared: &Shared, consensus: &Consensus) -> Result<(CellTime, Tenure), Failure> {
    let stamp = shared.leader_term.stamp()?;
    consensus.check_agreement().map_err(|_| Failure::no_leader())?;
    Ok(stamp)
}

/// The bug of `Mutation::GrantBeforeCommit`, if it is on: answers callers before the entry is committed.
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

/// An entry that is proposed and not applied yet.
struct InFlightEntry {
    sequence: u64,
    tenure: Tenure,
    batch: Arc<EncodedBatch>,
}

impl InFlightEntry {
    /// Handles an entry that did not reach the log, or whose outcome is unknown. Its callers get the failure. Commands of
    /// the node itself are proposed again: a lost expiry, tick or release would leave a session, a wait or a lock in place
    /// forever. All of these commands are idempotent.
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
            tokio::time::sleep(REPROPOSE_AFTER).await;
            // Only in the same tenure: the next one gives every session its full time to live again, so an expiry decided in
            // this one would break renewals that were acknowledged since (S3).
            if shared.leader_term.tenure() == Some(self.tenure) {
                own.into_iter().for_each(|command| shared.submit(command, Caller::Nobody));
            }
        });
    }
}
