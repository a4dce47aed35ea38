//! The queue of commands of clients and of the node itself that wait for the next log entry.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_core::limits::ENTRY_COST_MAX;
use lockkeeper_core::{Command, Endings};
use tokio::sync::Notify;

use crate::effects::callers::Caller;
use crate::failure::Failure;

/// Most commands in one entry, so that applying it stays fast.
const COMMANDS_PER_ENTRY_MAX: usize = 4_096;
/// Above this many queued commands only releasing commands are accepted (S11): those that free or end something.
const QUEUED_NEW_MAX: usize = 100_000;
/// Above this many queued commands no command of a client is accepted.
const QUEUED_MAX: usize = 400_000;
/// Once the oldest queued command has waited for this long, only releasing commands are accepted: callers of others would
/// have given up before their answer. Longer than a leader without a majority keeps leading.
const QUEUED_NEW_AGE_MAX: Duration = Duration::from_secs(2);
/// Bounds of the retry time that a refused caller is told.
const RETRY_AFTER_MS: std::ops::RangeInclusive<u64> = 200..=5_000;
/// Approximate size at which an entry is closed.
pub(super) const ENTRY_BYTES_MAX: usize = 1 << 20;
/// Above this many queued bytes only releasing commands are accepted.
const QUEUED_NEW_BYTES_MAX: usize = 128 << 20;
/// Longest time an entry gathers commands, while every turn of the runtime adds some.
const GATHER_TIME_MAX: Duration = Duration::from_millis(1);
/// With fewer queued commands than this the node is not busy and proposes them at once.
const GATHER_MIN: usize = 16;

/// The queue of commands that wait for the next log entry.
#[derive(Debug, Default)]
pub struct CommandQueue {
    queue: Mutex<Queue>,
    /// Notified when the queue is no longer empty.
    filled: Notify,
    /// Set while disks are full: only releasing commands are accepted.
    shortage: Mutex<Option<Shortage>>,
}

/// A shortage of space in the logs of the cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// The reason, for callers.
    pub(crate) why: String,
    /// Whether the space suffices only for commands that end something (see `space.rs`).
    pub(crate) only_endings: bool,
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
    /// Returns how long the oldest command has waited.
    fn backlog_age(&self) -> Duration {
        self.backlog_age_at(Instant::now())
    }

    fn backlog_age_at(&self, now: Instant) -> Duration {
        // A simulation must not depend on the load of the real machine.
        #[cfg(feature = "simulation")]
        if lockkeeper_net::simulation::host().is_some() {
            return Duration::ZERO;
        }
        self.commands.front().map_or(Duration::ZERO, |oldest| now.saturating_duration_since(oldest.since))
    }

    /// Estimates the next wait by the current one.
    fn retry_after_ms(&self) -> u64 {
        (self.backlog_age().as_millis() as u64).clamp(*RETRY_AFTER_MS.start(), *RETRY_AFTER_MS.end())
    }
}

impl CommandQueue {
    /// Returns why only releasing commands are accepted, while disks are full.
    pub fn trouble(&self) -> Option<String> {
        self.lock_shortage().as_ref().map(|shortage| shortage.why.clone())
    }

    /// Returns the shortage of space, while disks are full.
    pub(super) fn shortage(&self) -> Option<Shortage> {
        self.lock_shortage().clone()
    }

    /// Reports whether disks are full, and only releasing commands are accepted.
    pub(crate) fn is_short(&self) -> bool {
        self.lock_shortage().is_some()
    }

    /// Accepts only releasing commands from now on; with `None`, all commands again.
    pub(super) fn refuse_new(&self, new: Option<Shortage>) {
        let mut shortage = self.lock_shortage();
        match (&*shortage, &new) {
            (None, Some(new)) => tracing::error!("{}", new.why),
            (Some(_), None) => tracing::info!("the disks have free space again: accepting all commands"),
            _ => {}
        }
        *shortage = new;
    }

    fn lock_shortage(&self) -> MutexGuard<'_, Option<Shortage>> {
        self.shortage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is something in the queue.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Queues a command. The caller is answered when it is durable and applied, or at once if the queue is
    /// full.
    pub(crate) fn push(&self, command: Command, caller: Caller) {
        if let Err(refusal) = lockkeeper_core::limits::check_sizes(&command) {
            caller.deliver(Err(Failure::Refused(refusal)));
            return;
        }
        // Reads the clock once per command.
        let since = Instant::now();
        let mut queue = self.queue();
        let frees = command.frees();
        if !frees && let Some(why) = self.trouble() {
            drop(queue);
            caller.deliver(Err(Failure::Unavailable(why)));
            return;
        }
        // Commands of the node itself must never be lost. Their number is bounded: one tick, one expiry for each session,
        // one release for each grant.
        let full = match (&caller, frees) {
            (Caller::Nobody, _) => false,
            (_, true) => queue.commands.len() >= QUEUED_MAX,
            (_, false) => {
                queue.commands.len() >= QUEUED_NEW_MAX
                    || queue.bytes >= QUEUED_NEW_BYTES_MAX
                    || queue.backlog_age_at(since) >= QUEUED_NEW_AGE_MAX
            }
        };
        if full {
            let retry_after_ms = queue.retry_after_ms();
            drop(queue);
            let why = "the node has more requests than it can handle";
            caller.deliver(Err(Failure::Overload { why: why.into(), retry_after_ms }));
            return;
        }
        queue.bytes += command.size();
        queue.commands.push_back(Queued { command, caller, since });
        if queue.commands.len() == 1 {
            self.filled.notify_one();
        }
    }

    /// Refuses everything that is queued, after a loss of leadership. An expiry that was decided here must not survive into
    /// another term of this node, which starts by giving the session its full time to live again.
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

    /// Returns the number of queued commands.
    pub fn queued(&self) -> usize {
        self.queue().commands.len()
    }

    /// Returns how long the oldest queued command has waited.
    pub fn backlog_age(&self) -> Duration {
        self.queue().backlog_age()
    }

    /// Returns when a caller that is refused now should retry.
    pub fn retry_after_ms(&self) -> u64 {
        self.queue().retry_after_ms()
    }

    /// Takes the commands of an entry of about this size.
    fn take(&self, bytes_max: usize) -> (Vec<Command>, Vec<Caller>) {
        let mut queue = self.queue();
        let (mut count, mut bytes, mut cost) = (0, 0, 0);
        for Queued { command, .. } in queue.commands.iter().take(COMMANDS_PER_ENTRY_MAX) {
            if count > 0 && (bytes >= bytes_max || cost >= ENTRY_COST_MAX) {
                break;
            }
            bytes += command.size();
            cost += command.cost();
            count += 1;
        }
        queue.bytes -= bytes;
        queue.commands.drain(..count).map(|queued| (queued.command, queued.caller)).unzip()
    }

    /// Returns the approximate size of the next entry, in bytes.
    pub(super) fn next_entry_bytes(&self) -> usize {
        self.queue().bytes.min(ENTRY_BYTES_MAX)
    }

    /// Returns the approximate size of the next entry, and what it takes to end what its commands may add.
    pub(super) fn next_entry_needs(&self) -> (usize, Endings) {
        let queue = self.queue();
        let commands = queue.commands.iter().take(COMMANDS_PER_ENTRY_MAX);
        let endings = commands.map(|queued| queued.command.endings()).sum();
        (queue.bytes.min(ENTRY_BYTES_MAX), endings)
    }

    /// Takes the commands of the next entry, of about this size at most. While the disk is full, commands that are not
    /// releasing are refused, including those that were queued before.
    pub(super) fn take_admissible(&self, bytes_max: usize) -> Option<(Vec<Command>, Vec<Caller>)> {
        loop {
            let (commands, callers) = self.take(bytes_max);
            if commands.is_empty() {
                return None;
            }
            let Some(why) = self.trouble() else { return Some((commands, callers)) };
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

    /// Yields to tasks that are ready to run while they keep adding commands to a busy queue. An idle node yields once. An
    /// overloaded one makes fewer and larger entries, which raises its throughput.
    pub(super) async fn gather(&self) {
        let began = tokio::time::Instant::now();
        let mut queued = self.queued();
        while queued > 0 && queued < COMMANDS_PER_ENTRY_MAX && began.elapsed() < GATHER_TIME_MAX {
            tokio::task::yield_now().await;
            let before = std::mem::replace(&mut queued, self.queued());
            if queued == before || queued < GATHER_MIN {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Acquire, Locks, Refusal, SessionId};
    use tokio::sync::oneshot;

    use super::*;
    use crate::failure::Outcome;

    fn enqueue(queue: &CommandQueue, command: Command) -> oneshot::Receiver<Outcome> {
        let (sender, answer) = oneshot::channel();
        queue.push(command, Caller::Call(sender));
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
    fn full_queue_refuses_new_commands_then_releasing_ones_and_never_the_nodes_own() {
        let queue = CommandQueue::default();
        for _ in 0..QUEUED_NEW_MAX {
            queue.push(put(1), Caller::Nobody);
        }
        let refused = enqueue(&queue, put(1)).try_recv();
        let hint =
            |failure: &Failure| lockkeeper_api::Error::from(failure).retry_after_ms.unwrap_or_default();
        assert!(matches!(&refused, Ok(Err(failure)) if hint(failure) >= 200), "{refused:?}");
        assert!(enqueue(&queue, close()).try_recv().is_err(), "releasing commands are queued");
        while queue.queued() < QUEUED_MAX {
            queue.push(close(), Caller::Nobody);
        }
        assert!(matches!(enqueue(&queue, close()).try_recv(), Ok(Err(Failure::Overload { .. }))));
        queue.push(Command::Tick, Caller::Nobody);
        assert_eq!(queue.queued(), QUEUED_MAX + 1, "a tick is never lost");
    }

    #[test]
    fn queue_with_an_old_backlog_refuses_new_commands_and_tells_when_to_retry() {
        let queue = CommandQueue::default();
        let Some(long_ago) = Instant::now().checked_sub(QUEUED_NEW_AGE_MAX + Duration::from_secs(1)) else {
            return;
        };
        let (command, caller) = (Command::Tick, Caller::Nobody);
        queue.queue().commands.push_back(Queued { command, caller, since: long_ago });
        let refused = enqueue(&queue, put(1)).try_recv();
        let late = |failure: &Failure| {
            (3_000..=5_000).contains(&lockkeeper_api::Error::from(failure).retry_after_ms.unwrap_or_default())
        };
        assert!(matches!(&refused, Ok(Err(failure)) if late(failure)), "{refused:?}");
        assert!(enqueue(&queue, close()).try_recv().is_err(), "releasing commands are queued");
        queue.queue().commands.clear();
        assert!(enqueue(&queue, put(1)).try_recv().is_err(), "new commands are accepted again");
    }

    /// Queues a command at each turn of the runtime, up to `commands`, and counts the turns.
    async fn add_each_turn(queue: &CommandQueue, turns: &mut usize, commands: usize) {
        loop {
            if *turns < commands {
                queue.push(put(1), Caller::Nobody);
            }
            *turns += 1;
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_gathers_while_turns_add_commands_and_stops_when_one_adds_none() {
        for (queued, commands, gathered) in [(1, 5, 3), (GATHER_MIN, 0, GATHER_MIN), (GATHER_MIN, 5, 21)] {
            let (queue, mut turns) = (CommandQueue::default(), 0);
            (0..queued).for_each(|_| queue.push(put(1), Caller::Nobody));
            tokio::select! {
                biased;
                () = add_each_turn(&queue, &mut turns, commands) => {}
                () = queue.gather() => {}
            }
            assert_eq!(queue.queued(), gathered);
            assert!(turns <= commands + 2, "{turns} turns for {commands} commands");
        }
    }

    #[tokio::test]
    async fn an_entry_does_not_gather_forever() {
        let (queue, mut turns) = (CommandQueue::default(), 0);
        (0..GATHER_MIN).for_each(|_| queue.push(put(1), Caller::Nobody));
        tokio::select! {
            biased;
            () = add_each_turn(&queue, &mut turns, usize::MAX) => {}
            () = queue.gather() => {}
        }
        assert!(queue.queued() <= COMMANDS_PER_ENTRY_MAX + 1, "{}", queue.queued());
    }

    #[test]
    fn an_entry_and_the_queue_are_bounded_in_bytes() {
        let queue = CommandQueue::default();
        for _ in 0..100 {
            drop(enqueue(&queue, put(64 * 1024)));
        }
        let (commands, _) = queue.take(ENTRY_BYTES_MAX);
        assert!(commands.len() < 20, "{} values of 64 KiB in one entry", commands.len());
        assert_eq!(queue.take(1).0.len(), 1, "an entry has at least one command");
        while enqueue(&queue, put(64 * 1024)).try_recv().is_err() {
            assert!(queue.queue().bytes <= QUEUED_NEW_BYTES_MAX + (1 << 17));
        }
        while !queue.take(ENTRY_BYTES_MAX).0.is_empty() {}
        assert_eq!(queue.queue().bytes, 0);
    }

    #[test]
    fn an_entry_is_bounded_in_cost() {
        let queue = CommandQueue::default();
        let locks = Locks::many((0..128).map(|number| format!("lock-{number:03}").into()));
        let expensive = Command::Acquire(Acquire::new(SessionId(1), locks));
        for _ in 0..COMMANDS_PER_ENTRY_MAX {
            queue.push(expensive.clone(), Caller::Nobody);
        }
        let (commands, _) = queue.take(ENTRY_BYTES_MAX);
        let cost: u64 = commands.iter().map(Command::cost).sum();
        assert!(commands.len() > 1 && cost <= ENTRY_COST_MAX + expensive.cost(), "{cost} in one entry");
        let queue = CommandQueue::default();
        for _ in 0..COMMANDS_PER_ENTRY_MAX {
            queue.push(Command::Tick, Caller::Nobody);
        }
        assert_eq!(
            queue.take(ENTRY_BYTES_MAX).0.len(),
            COMMANDS_PER_ENTRY_MAX,
            "ordinary commands are bounded by number"
        );
    }

    #[test]
    fn too_large_commands_never_reach_the_log() {
        let queue = CommandQueue::default();
        let refused = enqueue(&queue, put(10 << 20)).try_recv();
        assert!(matches!(refused, Ok(Err(Failure::Refused(Refusal::TooLarge(_))))), "{refused:?}");
        assert_eq!(queue.queued(), 0);
    }

    #[test]
    fn full_disk_also_refuses_commands_queued_before() {
        let queue = CommandQueue::default();
        let mut new = enqueue(&queue, put(1));
        let _frees = enqueue(&queue, close());
        queue.refuse_new(Some(Shortage { why: "no space left".to_owned(), only_endings: false }));
        let (commands, _) = queue.take_admissible(ENTRY_BYTES_MAX).expect("a releasing command");
        assert_eq!(commands, [close()]);
        assert!(matches!(new.try_recv(), Ok(Err(Failure::Unavailable(_)))));
        let mut late = enqueue(&queue, put(1));
        assert!(matches!(late.try_recv(), Ok(Err(Failure::Unavailable(_)))));
        assert!(queue.take_admissible(ENTRY_BYTES_MAX).is_none());
    }
}
