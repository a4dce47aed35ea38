//! Orphans: waiting requests whose callers can't return. They were calls over HTTP or gRPC without a request ID, to an earlier
//! leader or in an earlier tenure of this one. A new leader cancels them. It searches for them in slices, so that many waiting
//! requests do not stall it when it takes over.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper_core::command::NODE_REQUEST_PREFIX;
use lockkeeper_core::{Command, LockTable, Ticket, Waiting};

/// Waiting requests that a new leader still has to check.
#[derive(Debug, Default)]
pub struct Orphans {
    remaining: Mutex<Option<Remaining>>,
}

/// The tickets from `next` to `last`. Later ones belong to callers of this leader.
#[derive(Debug, Clone, Copy)]
struct Remaining {
    next: Ticket,
    last: Ticket,
}

impl Orphans {
    fn remaining(&self) -> MutexGuard<'_, Option<Remaining>> {
        self.remaining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the search on a new leader.
    pub fn take_over(&self, table: &LockTable) {
        *self.remaining() = Some(Remaining { next: Ticket(0), last: table.last_ticket() });
    }

    /// Checks up to `limit` more waiting requests. Returns the commands that cancel those without a caller, and whether
    /// more requests remain.
    pub fn scan_more(&self, table: &LockTable, limit: usize) -> (Vec<Command>, bool) {
        let mut remaining = self.remaining();
        let Some(Remaining { next, last }) = *remaining else { return (Vec::new(), false) };
        let mut waiting = table.waiting_requests_from(next).take_while(|(ticket, ..)| *ticket <= last);
        let mut commands = Vec::new();
        for (_, session, request) in waiting.by_ref().take(limit) {
            if let Some(id) = request.filter(|id| id.starts_with(NODE_REQUEST_PREFIX)) {
                commands.push(Command::Cancel { session, what: Waiting::Request(id.clone()) });
            }
        }
        *remaining = waiting.next().map(|(next, ..)| Remaining { next, last });
        (commands, remaining.is_some())
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Acquire, Batch, CellTime, Locks, SessionId, Wait};

    use super::*;

    const SESSION: SessionId = SessionId(1);

    fn apply(table: &mut LockTable, commands: Vec<Command>) {
        let index = table.applied() + 1;
        table.apply(index, &Batch { now: CellTime(1), utc_ms: 0, commands }).unwrap();
    }

    fn waits(id: Option<String>) -> Command {
        Command::Acquire(Acquire {
            request: id.map(Into::into),
            wait: Wait::Forever,
            ..Acquire::new(SESSION, Locks::One("a".into()))
        })
    }

    #[test]
    fn waits_of_earlier_callers_are_cancelled_in_slices_and_later_ones_are_not() {
        let mut table = LockTable::new();
        apply(
            &mut table,
            vec![Command::OpenSession { session: SESSION, ttl_ms: 1_000, owner: "o".into(), identity: None }],
        );
        apply(&mut table, vec![Command::Acquire(Acquire::new(SESSION, Locks::One("a".into())))]);
        // One third are calls without an ID, one third have the client's ID, one third are from streams.
        let id = |number: usize| match number % 3 {
            0 => Some(format!("~1-{number:x}")),
            1 => Some(format!("mine-{number}")),
            _ => None,
        };
        apply(&mut table, (0..90).map(|number| waits(id(number))).collect());
        let orphans = Orphans::default();
        assert_eq!(orphans.scan_more(&table, 10), (Vec::new(), false));
        orphans.take_over(&table);
        apply(&mut table, vec![waits(Some("~2-0".to_owned()))]);
        let (mut cancelled, mut turns) = (Vec::new(), 0);
        loop {
            let (commands, more) = orphans.scan_more(&table, 20);
            assert!(commands.len() <= 7, "{}", commands.len());
            cancelled.extend(commands);
            turns += 1;
            if !more {
                break;
            }
        }
        let expected: Vec<Command> = (0..90)
            .step_by(3)
            .map(|number| Command::Cancel {
                session: SESSION,
                what: Waiting::Request(format!("~1-{number:x}").into()),
            })
            .collect();
        assert_eq!(cancelled, expected);
        assert_eq!(turns, 5);
        assert_eq!(orphans.scan_more(&table, 20), (Vec::new(), false));
    }
}
