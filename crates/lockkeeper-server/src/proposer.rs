//! On the leader: drains all that is queued into one log entry and stamps it with cell time.
//!
//! An entry costs a hundred times what an operation in it costs, so whatever has been queued while the last
//! entries were on their way goes into the next one together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkeeper_core::limits::ENTRY_COST_MAX;
use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::{Batch, Command};
use lockkeeper_net::utc;
use tokio::sync::Notify;

use crate::callers::Caller;
use crate::failure::Failure;
use crate::leader_term::Tenure;
use crate::pace::Pace;
use crate::raft::encoded_batch::EncodedBatch;
use crate::raft::log::LogStore;
use crate::raft::{Consensus, types::Proposal};
use crate::shared::Shared;
use crate::{space, trace};

/// Most commands in one entry, so that applying it stays short.
const COMMANDS_PER_ENTRY_MAX: usize = 4_096;
/// Most entries under way. Two: while one is being made durable, the next is prepared.
const ENTRIES_IN_FLIGHT_MAX: usize = 2;
/// From this many queued commands on, nothing new is taken in but what frees or ends something (S11).
const QUEUED_NEW_MAX: usize = 100_000;
/// From this many on, nothing is taken in.
const QUEUED_MAX: usize = 400_000;

/// From when on the oldest queued command has waited for this long, nothing new is taken in either: whoever queued
/// now would be answered when nobody waits any more. Longer than a leader without a majority stays in office.
const QUEUED_NEW_FOR_MAX: Duration = Duration::from_secs(2);
/// Between these two is the time after which a refused caller is asked to come back.
const RETRY_AFTER_MS: std::ops::RangeInclusive<u64> = 200..=5_000;

/// An entry is closed when it has grown to about this size.
const ENTRY_BYTES_MAX: usize = 1 << 20;
/// From this many queued bytes on, nothing new is taken in either.
const QUEUED_NEW_BYTES_MAX: usize = 128 << 20;
/// For so long an entry gathers, at most, while every turn of the runtime brings more for it.
const GATHERED_FOR_MAX: Duration = Duration::from_millis(1);
/// A node that has fewer commands to propose than this is not busy: they go at once.
const WORTH_GATHERING: usize = 16;
/// What the node itself asked for is asked again after this time, if its entry failed.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// While the disk is full, how often it is looked at again.
const SPACE_CHECK: Duration = Duration::from_millis(200);

/// The queue in front of the log.
#[derive(Debug, Default)]
pub struct Proposer {
    queue: Mutex<Queue>,
    wake: Notify,
    /// Why nothing new is taken in, while the disk has no room for more.
    disk_full: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
struct Queue {
    commands: VecDeque<Queued>,
    // Invariant: the sum of the sizes of its commands.
    bytes: usize,
}

#[derive(Debug)]
struct Queued {
    command: Command,
    caller: Caller,
    since: Instant,
}

impl Queue {
    /// How long the oldest command has waited.
    fn late(&self) -> Duration {
        self.late_at(Instant::now())
    }

    fn late_at(&self, now: Instant) -> Duration {
        // A simulated node does not depend on how busy the real machine is.
        #[cfg(feature = "simulation")]
        if lockkeeper_net::simulation::host().is_some() {
            return Duration::ZERO;
        }
        self.commands.front().map_or(Duration::ZERO, |oldest| now.saturating_duration_since(oldest.since))
    }

    /// As long as the queue takes now, it will take about then.
    fn retry_after_ms(&self) -> u64 {
        (self.late().as_millis() as u64).clamp(*RETRY_AFTER_MS.start(), *RETRY_AFTER_MS.end())
    }
}

impl Proposer {
    fn refuses_new(&self) -> Option<String> {
        self.disk_full.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why nothing new is taken in, while the disk has no room for more.
    pub fn trouble(&self) -> Option<String> {
        self.refuses_new()
    }

    /// Takes in nothing new from now on, and says why; or everything again.
    pub(crate) fn refuse_new(&self, why: Option<String>) {
        let mut disk_full = self.disk_full.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*disk_full, &why) {
            (None, Some(why)) => tracing::error!("{why}"),
            (Some(_), None) => tracing::info!("there is room on the disks again"),
            _ => {}
        }
        *disk_full = why;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a command. The caller is answered when it is durable and applied, or at once if the queue is
    /// full.
    pub fn submit(&self, command: Command, caller: Caller) {
        if let Err(refusal) = lockkeeper_core::limits::check_sizes(&command) {
            caller.deliver(Err(Failure::Refused(refusal)));
            return;
        }
        // The clock is read once for each command.
        let since = Instant::now();
        let mut queue = self.queue();
        let frees = command.frees();
        if !frees && let Some(why) = self.refuses_new() {
            drop(queue);
            caller.deliver(Err(Failure::Unavailable(why)));
            return;
        }
        // What the node itself asks is bounded by what there is, and must never get lost: one tick, one expiry
        // for each session, one give-back for each grant.
        let full = match (&caller, frees) {
            (Caller::Nobody, _) => false,
            (_, true) => queue.commands.len() >= QUEUED_MAX,
            (_, false) => {
                queue.commands.len() >= QUEUED_NEW_MAX
                    || queue.bytes >= QUEUED_NEW_BYTES_MAX
                    || queue.late_at(since) >= QUEUED_NEW_FOR_MAX
            }
        };
        if full {
            let retry_after_ms = queue.retry_after_ms();
            drop(queue);
            let why = "the node has more requests than it can carry";
            caller.deliver(Err(Failure::Overload { why: why.into(), retry_after_ms }));
            return;
        }
        queue.bytes += command.size();
        queue.commands.push_back(Queued { command, caller, since });
        if queue.commands.len() == 1 {
            self.wake.notify_one();
        }
    }

    /// This node no longer leads: nothing of what is queued has happened, and nothing will. An expiry that was
    /// decided here must not wait for another time in office, in which the session has been given its full
    /// time again.
    pub fn refuse_queued(&self, failure: &Failure) {
        let commands = {
            let mut queue = self.queue();
            queue.bytes = 0;
            std::mem::take(&mut queue.commands)
        };
        for Queued { caller, .. } in commands {
            caller.deliver(Err(failure.clone()));
        }
    }

    /// How many commands are queued.
    pub fn queued(&self) -> usize {
        self.queue().commands.len()
    }

    /// How long the oldest queued command has waited: how late the node is with its work.
    pub fn late(&self) -> Duration {
        self.queue().late()
    }

    /// When a caller that is refused now should come back.
    pub fn retry_after_ms(&self) -> u64 {
        self.queue().retry_after_ms()
    }

    fn take(&self) -> (Vec<Command>, Vec<Caller>) {
        let mut queue = self.queue();
        let (mut count, mut bytes, mut cost) = (0, 0, 0);
        for Queued { command, .. } in queue.commands.iter().take(COMMANDS_PER_ENTRY_MAX) {
            if count > 0 && (bytes >= ENTRY_BYTES_MAX || cost >= ENTRY_COST_MAX) {
                break;
            }
            bytes += command.size();
            cost += command.cost();
            count += 1;
        }
        queue.bytes -= bytes;
        queue.commands.drain(..count).map(|queued| (queued.command, queued.caller)).unzip()
    }

    /// About how many bytes the next entry has.
    fn next_entry_bytes(&self) -> usize {
        self.queue().bytes.min(ENTRY_BYTES_MAX)
    }

    /// The next commands for the log. While the disk is full, those that ask for something new are refused,
    /// also if they were queued before it was noticed.
    fn take_what_fits(&self) -> Option<(Vec<Command>, Vec<Caller>)> {
        loop {
            let (commands, callers) = self.take();
            if commands.is_empty() {
                return None;
            }
            let Some(why) = self.refuses_new() else { return Some((commands, callers)) };
            let mut kept = Vec::with_capacity(commands.len());
            for (command, caller) in commands.into_iter().zip(callers) {
                if command.frees() {
                    kept.push((command, caller));
                } else {
                    caller.deliver(Err(Failure::Unavailable(why.clone())));
                }
            }
            if !kept.is_empty() {
                return Some(kept.into_iter().unzip());
            }
        }
    }

    /// Everybody who is ready to run goes first, and for as long as that brings more to many. A node with time to spare is
    /// done after one turn; one that has more to do than it can carries fewer and larger entries, and so can do more.
    async fn gather(&self) {
        let began = tokio::time::Instant::now();
        let mut queued = self.queued();
        while queued > 0 && queued < COMMANDS_PER_ENTRY_MAX && began.elapsed() < GATHERED_FOR_MAX {
            tokio::task::yield_now().await;
            let before = std::mem::replace(&mut queued, self.queued());
            if queued == before || queued < WORTH_GATHERING {
                return;
            }
        }
    }

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
                () = shared.proposer.wake.notified(), if under_way.len() < ENTRIES_IN_FLIGHT_MAX => {}
                // What is new is refused before it is queued, so nothing else would notice that there is room.
                () = tokio::time::sleep(SPACE_CHECK), if waits_for_room || shared.proposer.refuses_new().is_some() => {}
            }
            space::check(&shared, &consensus, &log);
            while under_way.len() < ENTRIES_IN_FLIGHT_MAX {
                shared.proposer.gather().await;
                let pause = pace.pause(&consensus);
                if !pause.is_zero() && shared.proposer.queued() > 0 {
                    tokio::time::sleep(pause).await;
                    shared.metrics.members.proposal_pause_seconds.inc_by(pause.as_secs_f64());
                }
                space::check(&shared, &consensus, &log);
                // What is queued in front of the log keeps nobody else waiting; in the log it would block a vote.
                waits_for_room = !log.has_room_for(0, shared.proposer.next_entry_bytes());
                if waits_for_room {
                    break;
                }
                let Some((commands, callers)) = shared.proposer.take_what_fits() else { break };
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
                let callers = match mutation::is_on(Mutation::GrantBeforeCommit) {
                    true => answer_too_early(&shared, &batch, callers),
                    false => callers,
                };
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
}

/// What `Mutation::GrantBeforeCommit` does: answers what the entry would bring about, before anybody has it.
fn answer_too_early(shared: &Shared, batch: &Batch, callers: Vec<Caller>) -> Vec<Caller> {
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
            tokio::time::sleep(ASK_AGAIN).await;
            // Only in the tenure that decided it: the next one gives every session its full time again, so an expiry of
            // this one would break renewals that have been acknowledged since (S3).
            if shared.leader_term.tenure() == Some(self.tenure) {
                own.into_iter().for_each(|command| shared.proposer.submit(command, Caller::Nobody));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Acquire, Locks, Refusal, SessionId};
    use tokio::sync::oneshot;

    use super::*;
    use crate::failure::Outcome;

    fn ask(proposer: &Proposer, command: Command) -> oneshot::Receiver<Outcome> {
        let (sender, answer) = oneshot::channel();
        proposer.submit(command, Caller::Call(sender));
        answer
    }

    fn put(bytes: usize) -> Command {
        let value = vec![0; bytes].into();
        Command::PutValue { key: "k".into(), value, fence: None, if_version: None }
    }

    fn close() -> Command {
        Command::CloseSession { session: SessionId(1) }
    }

    #[test]
    fn a_full_queue_refuses_what_is_new_then_what_frees_and_never_the_nodes_own() {
        let proposer = Proposer::default();
        for _ in 0..QUEUED_NEW_MAX {
            proposer.submit(put(1), Caller::Nobody);
        }
        let refused = ask(&proposer, put(1)).try_recv();
        let hint = |failure: &Failure| failure.to_wire().retry_after_ms;
        assert!(matches!(&refused, Ok(Err(failure)) if hint(failure) >= 200), "{refused:?}");
        assert!(ask(&proposer, close()).try_recv().is_err(), "what frees is queued");
        while proposer.queued() < QUEUED_MAX {
            proposer.submit(close(), Caller::Nobody);
        }
        assert!(matches!(ask(&proposer, close()).try_recv(), Ok(Err(Failure::Overload { .. }))));
        proposer.submit(Command::Tick, Caller::Nobody);
        assert_eq!(proposer.queued(), QUEUED_MAX + 1, "a tick is never lost");
    }

    #[test]
    fn a_queue_that_is_late_refuses_what_is_new_and_says_when_to_come_back() {
        let proposer = Proposer::default();
        let Some(long_ago) = Instant::now().checked_sub(QUEUED_NEW_FOR_MAX + Duration::from_secs(1)) else {
            return;
        };
        let (command, caller) = (Command::Tick, Caller::Nobody);
        proposer.queue().commands.push_back(Queued { command, caller, since: long_ago });
        let refused = ask(&proposer, put(1)).try_recv();
        let late = |failure: &Failure| (3_000..=5_000).contains(&failure.to_wire().retry_after_ms);
        assert!(matches!(&refused, Ok(Err(failure)) if late(failure)), "{refused:?}");
        assert!(ask(&proposer, close()).try_recv().is_err(), "what frees is queued");
        proposer.queue().commands.clear();
        assert!(ask(&proposer, put(1)).try_recv().is_err(), "and all is well again");
    }

    /// Brings a command at each turn of the runtime, so many times, and counts the turns.
    async fn bring(proposer: &Proposer, turns: &mut usize, commands: usize) {
        loop {
            if *turns < commands {
                proposer.submit(put(1), Caller::Nobody);
            }
            *turns += 1;
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_gathers_what_every_turn_brings_and_does_not_wait_when_one_brings_nothing() {
        for (queued, commands, gathered) in
            [(1, 5, 3), (WORTH_GATHERING, 0, WORTH_GATHERING), (WORTH_GATHERING, 5, 21)]
        {
            let (proposer, mut turns) = (Proposer::default(), 0);
            (0..queued).for_each(|_| proposer.submit(put(1), Caller::Nobody));
            tokio::select! {
                biased;
                () = bring(&proposer, &mut turns, commands) => {}
                () = proposer.gather() => {}
            }
            assert_eq!(proposer.queued(), gathered);
            assert!(turns <= commands + 2, "{turns} turns for {commands} commands");
        }
    }

    #[tokio::test]
    async fn an_entry_does_not_gather_for_ever() {
        let (proposer, mut turns) = (Proposer::default(), 0);
        (0..WORTH_GATHERING).for_each(|_| proposer.submit(put(1), Caller::Nobody));
        tokio::select! {
            biased;
            () = bring(&proposer, &mut turns, usize::MAX) => {}
            () = proposer.gather() => {}
        }
        assert!(proposer.queued() <= COMMANDS_PER_ENTRY_MAX + 1, "{}", proposer.queued());
    }

    #[test]
    fn an_entry_and_the_queue_are_bounded_in_bytes() {
        let proposer = Proposer::default();
        for _ in 0..100 {
            drop(ask(&proposer, put(64 * 1024)));
        }
        let (commands, _) = proposer.take();
        assert!(commands.len() < 20, "{} values of 64 KiB in one entry", commands.len());
        while ask(&proposer, put(64 * 1024)).try_recv().is_err() {
            assert!(proposer.queue().bytes <= QUEUED_NEW_BYTES_MAX + (1 << 17));
        }
        while !proposer.take().0.is_empty() {}
        assert_eq!(proposer.queue().bytes, 0);
    }

    #[test]
    fn an_entry_is_bounded_in_cost() {
        let proposer = Proposer::default();
        let locks = Locks::many((0..128).map(|number| format!("lock-{number:03}").into()));
        let expensive = Command::Acquire(Acquire::new(SessionId(1), locks));
        for _ in 0..COMMANDS_PER_ENTRY_MAX {
            proposer.submit(expensive.clone(), Caller::Nobody);
        }
        let (commands, _) = proposer.take();
        let cost: u64 = commands.iter().map(Command::cost).sum();
        assert!(commands.len() > 1 && cost <= ENTRY_COST_MAX + expensive.cost(), "{cost} in one entry");
        let proposer = Proposer::default();
        for _ in 0..COMMANDS_PER_ENTRY_MAX {
            proposer.submit(close(), Caller::Nobody);
        }
        assert_eq!(
            proposer.take().0.len(),
            COMMANDS_PER_ENTRY_MAX,
            "ordinary commands are bounded by number"
        );
    }

    #[test]
    fn what_is_too_large_never_reaches_the_log() {
        let proposer = Proposer::default();
        let refused = ask(&proposer, put(10 << 20)).try_recv();
        assert!(matches!(refused, Ok(Err(Failure::Refused(Refusal::TooLarge(_))))), "{refused:?}");
        assert_eq!(proposer.queued(), 0);
    }

    #[test]
    fn a_full_disk_also_refuses_what_was_queued_before() {
        let proposer = Proposer::default();
        let mut new = ask(&proposer, put(1));
        let _frees = ask(&proposer, close());
        *proposer.disk_full.lock().expect("not poisoned") = Some("no space left".to_owned());
        let (commands, _) = proposer.take_what_fits().expect("something frees");
        assert_eq!(commands, [close()]);
        assert!(matches!(new.try_recv(), Ok(Err(Failure::Unavailable(_)))));
        let mut late = ask(&proposer, put(1));
        assert!(matches!(late.try_recv(), Ok(Err(Failure::Unavailable(_)))));
        assert!(proposer.take_what_fits().is_none());
    }
}
