//! What a leader needs to know while there is little space for log entries (S11): how many entries it may take to end
//! everything, and which commands are not worth an entry because they would change nothing.

use crate::bounds::bounds;
use crate::command::{Command, Waiting};
use crate::effect::{Answer, Reply};
use crate::id::{LockName, SessionId, Token};
use crate::refusal::Refusal;
use crate::session::Remembered;
use crate::table::LockTable;
use crate::weighed::RECORD;

/// Upper bounds on the entries that end every session, grant, wait and lock-delay, each by an entry of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Endings {
    /// Number of entries.
    pub entries: u64,
    /// Bytes of the names in them.
    pub name_bytes: u64,
}

/// What a command would do to the table as it is now.
#[derive(Debug, Clone, PartialEq)]
pub enum Prospect {
    /// It ends a session, a grant or a wait.
    Ends,
    /// It changes something else, or its outcome is not known in advance.
    Changes,
    /// It changes nothing but the version of its session, and gets this answer.
    Nothing(Answer),
}

impl LockTable {
    /// What it takes to end everything that exists. A lock of a grant takes a release, or a tick at the end of its lock-delay.
    /// A waiting request is granted by the entry that ends another, and then takes as many releases as it names locks.
    pub fn endings(&self) -> Endings {
        let locks = self.grants.locks() + self.waiters.locks();
        // The answers and scopes of ended sessions are forgotten in slices. Each entry does a slice, so this is ample.
        let remains = (self.requests.len() + self.settled.len() + self.scopes.all.len()) as u64;
        let slices = remains / bounds().steps_for_forgetting.max(1);
        // Records in the map, and those that the weights of both contain for each further lock and for each waiting request.
        let records = locks + self.waiters.len() as u64;
        let bytes = self.grants.bytes() + self.waiters.bytes();
        Endings {
            entries: locks + (self.sessions.len() + self.timers.len() + self.ending.len()) as u64 + slices,
            name_bytes: bytes.saturating_sub(RECORD * records),
        }
    }

    /// What a command would do if the next entry consisted of it alone. Looks up a few records, and changes nothing.
    pub fn prospect(&self, command: &Command) -> Prospect {
        match command {
            Command::Release { session, lock, token, .. } => match self.check_held(*session, lock, *token) {
                Ok(()) => Prospect::Ends,
                Err(refusal) => Prospect::Nothing(Err(refusal)),
            },
            Command::CloseSession { session } | Command::ExpireSession { session, .. } => {
                match self.sessions.contains_key(session) {
                    true => Prospect::Ends,
                    false => Prospect::Nothing(Err(Refusal::SessionLost)),
                }
            }
            Command::Cancel { session, what } => self.prospect_of_cancel(*session, what),
            Command::HandOver { session, lock, token, .. } => match self.check_held(*session, lock, *token) {
                Ok(()) => Prospect::Changes,
                Err(refusal) => Prospect::Nothing(Err(refusal)),
            },
            Command::DeleteValue { key, fence, if_version } => {
                match self.check_write(key, fence.as_ref(), *if_version) {
                    Ok(_) if self.values.contains_key(key) => Prospect::Changes,
                    Ok(_) => Prospect::Nothing(Ok(Reply::Done)),
                    Err(refusal) => Prospect::Nothing(Err(refusal)),
                }
            }
            Command::ForceRelease { lock, .. } => {
                match self.locks.get(lock).is_some_and(|lock| lock.holders.len() > 0) {
                    true => Prospect::Ends,
                    false => Prospect::Changes,
                }
            }
            Command::Tick => Prospect::Ends,
            Command::OpenSession { .. }
            | Command::Acquire(_)
            | Command::PutValue { .. }
            | Command::TakeRate(_)
            | Command::ChangeAccess { .. }
            | Command::AuditNote { .. }
            | Command::RaiseCellVersion { .. } => Prospect::Changes,
            #[cfg(feature = "next-version")]
            Command::NextVersionNote { .. } => Prospect::Changes,
        }
    }

    /// Checks that the session is alive and that its token holds the lock.
    fn check_held(&self, session: SessionId, lock: &LockName, token: Token) -> Result<(), Refusal> {
        if !self.sessions.contains_key(&session) {
            return Err(Refusal::SessionLost);
        }
        match self.grants.get(&(session, token)) {
            Some(held) if held.locks.as_slice().contains(lock) => Ok(()),
            _ => Err(Refusal::NotHeld { lock: lock.clone(), token }),
        }
    }

    fn prospect_of_cancel(&self, session: SessionId, what: &Waiting) -> Prospect {
        if !self.sessions.contains_key(&session) {
            return Prospect::Nothing(Err(Refusal::SessionLost));
        }
        let ticket = match what {
            Waiting::Ticket(ticket) => *ticket,
            Waiting::Request(id) => match self.requests.get(&(session, id.clone())) {
                Some(Remembered::Waiting(ticket)) => *ticket,
                Some(Remembered::Granted(grant)) if self.grants.contains_key(&(session, grant.token)) => {
                    return Prospect::Ends;
                }
                Some(Remembered::Granted(_) | Remembered::Refused(_)) => {
                    return Prospect::Nothing(Ok(Reply::Done));
                }
                // It is remembered, so that its acquire is not granted if it still arrives.
                None => return Prospect::Changes,
            },
        };
        match self.waiters.get(&ticket).is_some_and(|waiter| waiter.session == session) {
            true => Prospect::Ends,
            false => Prospect::Nothing(Ok(Reply::Done)),
        }
    }
}

impl Command {
    /// An upper bound on the entries that it takes to end what it may add to the table: see [`LockTable::endings`].
    pub fn endings(&self) -> Endings {
        match self {
            Command::OpenSession { .. } => Endings { entries: 1, name_bytes: 0 },
            Command::Acquire(request) => {
                let locks = request.locks.as_slice();
                // One for each lock, and one for the end of a wait.
                Endings { entries: locks.len() as u64 + 1, name_bytes: self.size() as u64 }
            }
            _ => Endings::default(),
        }
    }
}

impl std::ops::Add for Endings {
    type Output = Endings;

    fn add(self, other: Endings) -> Endings {
        Endings { entries: self.entries + other.entries, name_bytes: self.name_bytes + other.name_bytes }
    }
}

impl std::iter::Sum for Endings {
    fn sum<I: Iterator<Item = Endings>>(all: I) -> Endings {
        all.fold(Endings::default(), |sum, one| sum + one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Acquire, Batch, Locks, Wait};
    use crate::id::CellTime;

    const SESSION: SessionId = SessionId(7);

    fn apply(table: &mut LockTable, command: Command) -> Answer {
        let batch = Batch { now: table.now(), utc_ms: 0, commands: vec![command] };
        let index = table.applied() + 1;
        table.apply(index, &batch).unwrap().answers.remove(0)
    }

    fn acquire(locks: Locks, wait: Wait, request: Option<&str>) -> Command {
        Command::Acquire(Acquire { wait, request: request.map(Into::into), ..Acquire::new(SESSION, locks) })
    }

    fn release(lock: &str, token: u64) -> Command {
        Command::Release { session: SESSION, lock: lock.into(), token: Token(token), forget: false }
    }

    /// A table with one session. It holds a, b and c, and waits for a.
    fn table() -> LockTable {
        let mut table = LockTable::new();
        let open =
            Command::OpenSession { session: SESSION, ttl_ms: 1_000, owner: "o".into(), identity: None };
        assert!(apply(&mut table, open).is_ok());
        assert!(apply(&mut table, acquire(Locks::One("a".into()), Wait::No, Some("r1"))).is_ok());
        let two = Locks::many(["b".into(), "c".into()]);
        assert!(apply(&mut table, acquire(two, Wait::No, None)).is_ok());
        assert!(apply(&mut table, acquire(Locks::One("a".into()), Wait::Forever, Some("r2"))).is_ok());
        table
    }

    #[test]
    fn endings_count_each_lock_of_each_grant_and_wait() {
        let mut table = table();
        let endings = table.endings();
        // The session, a, b, c and the wait.
        assert_eq!(endings.entries, 5);
        assert!((4..=4 + 4).contains(&endings.name_bytes), "{endings:?}: the names, and two request ids");
        let long = "x".repeat(400);
        apply(&mut table, acquire(Locks::One(long.as_str().into()), Wait::No, None)).unwrap();
        assert_eq!(table.endings().entries, 6);
        assert_eq!(table.endings().name_bytes, endings.name_bytes + 400);
        apply(&mut table, Command::CloseSession { session: SESSION }).unwrap();
        assert_eq!(table.endings(), Endings::default(), "nothing is left");
    }

    #[test]
    fn prospects_tell_what_a_command_would_do() {
        let table = table();
        let cancel = |id: &str| Command::Cancel { session: SESSION, what: Waiting::Request(id.into()) };
        let delete = |if_version| Command::DeleteValue { key: "k".into(), fence: None, if_version };
        let stranger = Command::CloseSession { session: SessionId(8) };
        let lost = Prospect::Nothing(Err(Refusal::SessionLost));
        assert_eq!(table.prospect(&release("a", 1)), Prospect::Ends);
        assert_eq!(table.prospect(&release("c", 2)), Prospect::Ends);
        let not_held = Refusal::NotHeld { lock: "c".into(), token: Token(1) };
        assert_eq!(table.prospect(&release("c", 1)), Prospect::Nothing(Err(not_held)));
        assert_eq!(table.prospect(&Command::CloseSession { session: SESSION }), Prospect::Ends);
        assert_eq!(table.prospect(&stranger), lost);
        assert_eq!(table.prospect(&cancel("r1")), Prospect::Ends);
        assert_eq!(table.prospect(&cancel("r2")), Prospect::Ends);
        assert_eq!(table.prospect(&cancel("unknown")), Prospect::Changes, "it is remembered");
        assert_eq!(table.prospect(&delete(None)), Prospect::Nothing(Ok(Reply::Done)));
        let mismatch = Refusal::VersionMismatch { version: 0 };
        assert_eq!(table.prospect(&delete(Some(3))), Prospect::Nothing(Err(mismatch)));
        assert_eq!(table.prospect(&Command::Tick), Prospect::Ends);
    }

    /// Every command that would change nothing gets the predicted answer and leaves the table as it was.
    #[test]
    fn a_command_without_effect_gets_the_predicted_answer() {
        let mut table = table();
        let cancel = |what| Command::Cancel { session: SESSION, what };
        apply(&mut table, cancel(Waiting::Request("r1".into()))).unwrap();
        let commands = [
            release("a", 1),
            release("b", 77),
            Command::CloseSession { session: SessionId(8) },
            cancel(Waiting::Request("r1".into())),
            cancel(Waiting::Ticket(crate::id::Ticket(99))),
            Command::DeleteValue { key: "k".into(), fence: None, if_version: None },
            Command::HandOver { session: SESSION, lock: "b".into(), token: Token(9), to: "x".into() },
        ];
        for command in commands {
            let Prospect::Nothing(predicted) = table.prospect(&command) else { panic!("{command:?}") };
            let before = (table.counts(), table.endings(), table.last_token());
            assert_eq!(apply(&mut table, command.clone()), predicted, "{command:?}");
            assert_eq!((table.counts(), table.endings(), table.last_token()), before, "{command:?}");
        }
        assert_eq!(table.now(), CellTime::default());
    }
}
