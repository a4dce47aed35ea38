//! Requests that wait and whose callers are gone for good. They were calls over HTTP or gRPC without a request id, to a former
//! leader or in a former term of this one, and nobody can come back for them: a new leader takes them out of the
//! queue. It looks for them in slices, so that many waiting requests do not stall it when it takes over.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper_core::command::NODE_REQUEST_PREFIX;
use lockkeeper_core::{Command, LockTable, Ticket, Waiting};

/// Which waiting requests a new leader still has to look at.
#[derive(Debug, Default)]
pub struct Orphans {
    left: Mutex<Option<Left>>,
}

/// The tickets from `next` through `last`. Whoever came later is a caller of this leader.
#[derive(Debug, Clone, Copy)]
struct Left {
    next: Ticket,
    last: Ticket,
}

impl Orphans {
    fn left(&self) -> MutexGuard<'_, Option<Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new leader begins to look.
    pub fn take_over(&self, table: &LockTable) {
        *self.left() = Some(Left { next: Ticket(0), last: table.last_ticket() });
    }

    /// Looks at up to `limit` more waiting requests. Answers the commands that end those without a caller, and whether
    /// there are more to look at.
    pub fn look_at_more(&self, table: &LockTable, limit: usize) -> (Vec<Command>, bool) {
        let mut left = self.left();
        let Some(Left { next, last }) = *left else { return (Vec::new(), false) };
        let mut waiting = table.waiting_requests_from(next).take_while(|(ticket, ..)| *ticket <= last);
        let mut commands = Vec::new();
        for (_, session, request) in waiting.by_ref().take(limit) {
            if let Some(id) = request.filter(|id| id.starts_with(NODE_REQUEST_PREFIX)) {
                commands.push(Command::Cancel { session, what: Waiting::Request(id.clone()) });
            }
        }
        *left = waiting.next().map(|(next, ..)| Left { next, last });
        (commands, left.is_some())
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
    fn waits_of_former_callers_are_cancelled_in_slices_and_later_ones_are_not() {
        let mut table = LockTable::new();
        apply(
            &mut table,
            vec![Command::OpenSession { session: SESSION, ttl_ms: 1_000, owner: "o".into(), identity: None }],
        );
        apply(&mut table, vec![Command::Acquire(Acquire::new(SESSION, Locks::One("a".into())))]);
        // Each third is a call without an id, each third has the client's id, each third is of a stream.
        let id = |number: usize| match number % 3 {
            0 => Some(format!("~1-{number:x}")),
            1 => Some(format!("mine-{number}")),
            _ => None,
        };
        apply(&mut table, (0..90).map(|number| waits(id(number))).collect());
        let orphans = Orphans::default();
        assert_eq!(orphans.look_at_more(&table, 10), (Vec::new(), false));
        orphans.take_over(&table);
        apply(&mut table, vec![waits(Some("~2-0".to_owned()))]);
        let (mut cancelled, mut turns) = (Vec::new(), 0);
        loop {
            let (commands, more) = orphans.look_at_more(&table, 20);
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
        assert_eq!(orphans.look_at_more(&table, 20), (Vec::new(), false));
    }
}
