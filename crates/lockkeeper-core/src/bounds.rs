//! The bounds in force (S11). Some take gigabytes to reach, so with the feature `mutations` a test can set smaller ones on
//! its thread. Without the feature they are constants.

use crate::command::Command;
use crate::limits;

/// A set of bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// See [`limits::SESSIONS_MAX`].
    pub sessions: usize,
    /// See [`limits::LOCKS_MAX`].
    pub locks: usize,
    /// See [`limits::VALUES_MAX`].
    pub values: usize,
    /// See [`limits::GRANTS_PER_SESSION_MAX`].
    pub grants_per_session: u32,
    /// See [`limits::WAITS_PER_SESSION_MAX`].
    pub waits_per_session: u32,
    /// See [`limits::WAITERS_PER_LOCK_MAX`].
    pub waiters_per_lock: u32,
    /// See [`limits::BACKLOG_STEPS_PER_ENTRY`].
    pub steps_per_search: u64,
    /// See [`limits::COMMAND_STEPS_PER_ENTRY`].
    pub steps_for_commands: u64,
    /// See [`limits::STEPS_PER_COMMAND`].
    pub steps_per_command: u64,
    /// See [`limits::REAP_STEPS_PER_ENTRY`].
    pub steps_for_reaping: u64,
    /// See [`limits::FORGET_STEPS_PER_ENTRY`].
    pub steps_for_forgetting: u64,
    /// See [`limits::STEPS_PER_PIECE_MAX`].
    pub steps_per_piece: u64,
}

impl Bounds {
    /// The bounds of every cell.
    pub const REAL: Bounds = Bounds {
        sessions: limits::SESSIONS_MAX,
        locks: limits::LOCKS_MAX,
        values: limits::VALUES_MAX,
        grants_per_session: limits::GRANTS_PER_SESSION_MAX,
        waits_per_session: limits::WAITS_PER_SESSION_MAX,
        waiters_per_lock: limits::WAITERS_PER_LOCK_MAX,
        steps_per_search: limits::BACKLOG_STEPS_PER_ENTRY,
        steps_for_commands: limits::COMMAND_STEPS_PER_ENTRY,
        steps_per_command: limits::STEPS_PER_COMMAND,
        steps_for_reaping: limits::REAP_STEPS_PER_ENTRY,
        steps_for_forgetting: limits::FORGET_STEPS_PER_ENTRY,
        steps_per_piece: limits::STEPS_PER_PIECE_MAX,
    };

    /// The maximum number of steps of an entry with these commands: all its budgets, and for each of commands, reaping and
    /// forgetting one piece of work that began when the budget was almost spent.
    pub fn steps_per_entry_max(&self, commands: &[Command]) -> u64 {
        let of_commands: u64 =
            commands.iter().map(|command| self.steps_per_command + command.steps_of_further_locks()).sum();
        self.steps_per_search
            + 1
            + self.steps_for_commands
            + of_commands
            + self.steps_for_reaping
            + self.steps_for_forgetting
            + 3 * self.steps_per_piece
    }
}

#[cfg(feature = "mutations")]
mod in_force {
    use std::cell::Cell;

    use super::Bounds;

    thread_local! {
        static BOUNDS: Cell<Bounds> = const { Cell::new(Bounds::REAL) };
    }

    /// Sets the bounds of this thread.
    pub fn set(bounds: Bounds) {
        BOUNDS.set(bounds);
    }

    /// The bounds in force.
    pub fn bounds() -> Bounds {
        BOUNDS.get()
    }
}

#[cfg(not(feature = "mutations"))]
mod in_force {
    use super::Bounds;

    /// The bounds in force.
    pub const fn bounds() -> Bounds {
        Bounds::REAL
    }
}

pub use in_force::*;
