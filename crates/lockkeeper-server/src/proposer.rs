//! On the leader: drains all that is queued into one log entry and stamps it with cell time.
//!
//! An entry costs a hundred times what an operation in it costs, so whatever has been queued while the last
//! entries were on their way goes into the next one together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkeeper_core::{Batch, Command};
use tokio::sync::Notify;

use crate::callers::Caller;
use crate::failure::Failure;
use crate::raft::log::LogStore;
use crate::raft::{Consensus, types::Proposal};
use crate::shared::Shared;

/// Most commands in one entry, so that applying it stays short.
const COMMANDS_PER_ENTRY_MAX: usize = 4_096;
/// Most entries under way. Two: while one is being made durable, the next is prepared.
const ENTRIES_IN_FLIGHT_MAX: usize = 2;
/// From this many queued commands on, nothing new is taken in but what frees or ends something (S11).
const QUEUED_NEW_MAX: usize = 100_000;
/// From this many on, nothing is taken in.
const QUEUED_MAX: usize = 400_000;

/// This much of the log's last segment is kept for releases and expiries when the disk is full.
const RESERVED_BYTES: u64 = 4 << 20;

/// The queue in front of the log.
#[derive(Debug, Default)]
pub struct Proposer {
    queue: Mutex<VecDeque<(Command, Caller)>>,
    wake: Notify,
    /// Why nothing new is taken in, while the disk has no room for more.
    disk_full: Mutex<Option<String>>,
}

impl Proposer {
    fn refuses_new(&self) -> Option<String> {
        self.disk_full.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks at the room in the log. While the next segment cannot be made, what is left in this one is kept
    /// for what frees and ends things; when there is room again, everything goes on by itself.
    pub fn check_space(&self, log: &LogStore) {
        let space = log.space();
        let trouble = space
            .trouble
            .filter(|_| space.current_bytes + space.next_bytes < RESERVED_BYTES)
            .map(|error| format!("nothing new is granted for now, releases still work: {error}"));
        let mut disk_full = self.disk_full.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*disk_full, &trouble) {
            (None, Some(why)) => tracing::error!("{why}"),
            (Some(_), None) => tracing::info!("there is room on the disk again"),
            _ => {}
        }
        *disk_full = trouble;
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<(Command, Caller)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a command. The caller is answered when it is durable and applied, or at once if the queue is
    /// full.
    pub fn submit(&self, command: Command, caller: Caller) {
        let mut queue = self.queue();
        let frees = frees(&command);
        if !frees && let Some(why) = self.refuses_new() {
            drop(queue);
            caller.deliver(Err(Failure::Unavailable(why)));
            return;
        }
        let limit = if frees { QUEUED_MAX } else { QUEUED_NEW_MAX };
        if queue.len() >= limit {
            drop(queue);
            caller.deliver(Err(Failure::Overload(
                "the node has more requests than it can carry: come back in a second".to_owned(),
            )));
            return;
        }
        queue.push_back((command, caller));
        if queue.len() == 1 {
            self.wake.notify_one();
        }
    }

    /// How many commands are queued.
    pub fn queued(&self) -> usize {
        self.queue().len()
    }

    fn take(&self) -> (Vec<Command>, Vec<Caller>) {
        let mut queue = self.queue();
        let count = queue.len().min(COMMANDS_PER_ENTRY_MAX);
        queue.drain(..count).unzip()
    }

    /// Proposes until the node stops.
    pub(crate) async fn run(shared: Arc<Shared>, consensus: Consensus, log: LogStore) {
        let mut under_way = FuturesUnordered::new();
        let mut sequence = 0;
        loop {
            tokio::select! {
                biased;
                Some((sequence, result)) = under_way.next(), if !under_way.is_empty() => {
                    if let Err(failure) = result {
                        fail(&shared, sequence, failure);
                    }
                }
                () = shared.proposer.wake.notified(), if under_way.len() < ENTRIES_IN_FLIGHT_MAX => {
                    // Everybody who is ready to run goes first, so that what they bring fits in.
                    tokio::task::yield_now().await;
                }
            }
            while under_way.len() < ENTRIES_IN_FLIGHT_MAX {
                let (commands, callers) = shared.proposer.take();
                if commands.is_empty() {
                    break;
                }
                let now = match shared.office.now() {
                    Ok(now) => now,
                    Err(failure) => {
                        for caller in callers {
                            caller.deliver(Err(failure.clone()));
                        }
                        continue;
                    }
                };
                shared.proposer.check_space(&log);
                sequence += 1;
                shared.metrics.batch_commands.observe(commands.len() as f64);
                let batch = Arc::new(Batch { now, commands });
                shared.callers.expect(sequence, callers);
                let proposal = Proposal { proposer: shared.proposer_id, sequence, batch };
                match consensus.propose(proposal).await {
                    Ok(done) => under_way.push(async move { (sequence, done.await) }),
                    Err(failure) => fail(&shared, sequence, failure),
                }
            }
        }
    }
}

/// What frees or ends something is carried out for as long as anything can be (S11).
fn frees(command: &Command) -> bool {
    match command {
        Command::Release { .. }
        | Command::Cancel { .. }
        | Command::CloseSession { .. }
        | Command::ExpireSession { .. }
        | Command::ForceRelease { .. }
        | Command::DeleteValue { .. }
        | Command::Tick => true,
        Command::OpenSession { .. } | Command::Acquire(_) | Command::PutValue { .. } => false,
    }
}

fn fail(shared: &Shared, sequence: u64, failure: Failure) {
    for caller in shared.callers.take(sequence).into_iter().flatten() {
        caller.deliver(Err(failure.clone()));
    }
}
