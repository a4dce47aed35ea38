//! A table that checks and counts the steps of its entries.

use std::time::Duration;

use lockkeeper_core::bounds::Bounds;
use lockkeeper_core::limits;
use lockkeeper_core::{Acquire, Applied, Batch, CellTime, Command, LockTable, Locks, Mode, SessionId, Wait};
use rustix::time::{ClockId, clock_gettime};

/// Most steps of an entry in any of these tests. The worst entries took 13 ms of CPU time in a release build; about 20 ms
/// are allowed.
const STEPS_WORST: u64 = 55_000;
/// Most commands that the leader puts into an entry.
pub(crate) const COMMANDS_MAX: usize = 4_096;

#[derive(Default)]
pub(crate) struct Cell {
    pub(crate) table: LockTable,
    pub(crate) entries: u64,
    pub(crate) steps: u64,
    pub(crate) steps_worst: u64,
    pub(crate) time_worst: Duration,
}

impl Cell {
    pub(crate) fn apply(&mut self, commands: Vec<Command>) -> Applied {
        self.apply_at(self.table.now(), commands)
    }

    /// Applies an entry and checks that it stays within the budgets.
    pub(crate) fn apply_at(&mut self, now: CellTime, commands: Vec<Command>) -> Applied {
        let most = Bounds::REAL.steps_per_entry_max(&commands);
        let batch = Batch { now, utc_ms: 0, commands };
        let began = thread_time();
        let applied = self.table.apply(self.table.applied() + 1, &batch).unwrap();
        self.time_worst = self.time_worst.max(thread_time() - began);
        let steps = self.table.steps();
        let most = most.min(STEPS_WORST);
        assert!(steps <= most, "{steps} steps in one entry, at most {most} are allowed");
        self.entries += 1;
        self.steps += steps;
        self.steps_worst = self.steps_worst.max(steps);
        applied
    }

    /// Applies commands in entries of the size that the leader makes.
    pub(crate) fn apply_all(&mut self, commands: impl IntoIterator<Item = Command>) -> Vec<Applied> {
        let mut applied = Vec::new();
        let mut entry = Vec::new();
        let mut cost = 0;
        for command in commands {
            cost += command.cost();
            entry.push(command);
            if cost >= limits::ENTRY_COST_MAX || entry.len() == COMMANDS_MAX {
                applied.push(self.apply(std::mem::take(&mut entry)));
                cost = 0;
            }
        }
        applied.push(self.apply(entry));
        applied
    }

    /// Ticks until nothing is left to do.
    pub(crate) fn drain(&mut self) -> Vec<Applied> {
        let mut applied = Vec::new();
        while self.table.next_wake().is_some_and(|due| due <= self.table.now()) {
            applied.push(self.apply(vec![Command::Tick]));
            assert!(applied.len() < 10_000, "no end after 10,000 ticks");
        }
        applied
    }

    pub(crate) fn reset(&mut self) {
        (self.entries, self.steps, self.steps_worst, self.time_worst) = (0, 0, 0, Duration::ZERO);
    }

    pub(crate) fn print(&self, what: &str) {
        println!(
            "{what}: {} entries, {} steps, the worst {} steps in {:?}",
            self.entries, self.steps, self.steps_worst, self.time_worst
        );
    }
}

/// The CPU time of this thread: other processes do not count.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub(crate) fn open(session: u128) -> Command {
    Command::OpenSession { session: SessionId(session), ttl_ms: 10_000, owner: "o".into(), identity: None }
}

pub(crate) fn acquire(session: u128, lock: &str) -> Acquire {
    Acquire::new(SessionId(session), Locks::One(lock.into()))
}

pub(crate) fn waiting(session: u128, lock: &str) -> Acquire {
    Acquire { wait: Wait::Forever, ..acquire(session, lock) }
}

pub(crate) fn scoped(request: Acquire, scope: usize) -> Acquire {
    Acquire { scope: Some(format!("scope-{scope}").into()), ..request }
}

pub(crate) fn shared(request: Acquire) -> Acquire {
    Acquire { mode: Mode::Shared, ..request }
}
