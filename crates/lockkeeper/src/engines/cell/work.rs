//! What callers ask of the connection, and what the connection has in hand.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::v1::answer::Kind as Answered;
use lockkeeper_api::v1::operation::Kind as Asked;
use lockkeeper_api::v1::{
    AcquireAllRequest, AttachRequest, CancelRequest, CloseSessionRequest, KeepAliveAll, OpenSessionRequest,
    ReleaseRequest,
};
use lockkeeper_core::Locks;
use smol_str::SmolStr;
use tokio::sync::oneshot;

use super::session::Session;
use crate::clock::Moment;
use crate::engines::{AcquireRequest, Wait};
use crate::error::Error;
use crate::grant::Grant;
use crate::mode::Mode;

/// What a caller asks of the connection. The number is drawn by the caller, and is the operation's id on the wire.
pub(super) enum Request {
    Acquire {
        number: u64,
        ask: Arc<AcquireRequest>,
        asked_at: Moment,
        reply: oneshot::Sender<Result<Arc<Grant>, Error>>,
    },
    /// `number` is that of the acquire.
    Release {
        number: u64,
        reply: oneshot::Sender<Result<(), Error>>,
    },
    Call {
        number: u64,
        asked: Box<Asked>,
        repeatable: bool,
        reply: oneshot::Sender<Result<Answered, Error>>,
    },
    SessionIds {
        reply: oneshot::Sender<Vec<String>>,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
}

/// Something in hand, until it is answered.
pub(super) struct Entry {
    /// Its id on the wire. It is the entry's number, unless the same link still owes an answer for that.
    pub(super) wire: u64,
    /// It was put on the present link.
    pub(super) sent: bool,
    /// It was put on an earlier link, and there was no answer: it may have happened.
    pub(super) resent: bool,
    /// When to look whether it has been in hand for too long.
    pub(super) give_up: Moment,
    /// Why the node could not do it when it was last asked.
    pub(super) refused: Option<SmolStr>,
    /// The node has asked not to be asked again before this.
    pub(super) not_before: Option<Moment>,
    pub(super) work: Work,
}

impl Entry {
    pub(super) fn new(number: u64, give_up: Moment, work: Work) -> Entry {
        Entry { wire: number, sent: false, resent: false, give_up, refused: None, not_before: None, work }
    }
}

/// The kinds of work.
pub(super) enum Work {
    Acquire(Acquiring),
    Release(Releasing),
    /// Leave the queue, or give back what was granted.
    Cancel {
        session: Arc<Session>,
        request: SmolStr,
    },
    Call {
        asked: Box<Asked>,
        repeatable: bool,
        reply: oneshot::Sender<Result<Answered, Error>>,
    },
    Open {
        ttl: Duration,
        sent_at: Moment,
    },
    Attach {
        session: Arc<Session>,
    },
    KeepAlive {
        sessions: Vec<Arc<Session>>,
        sent_at: Moment,
    },
    CloseSession {
        session: Arc<Session>,
    },
}

/// A lock that is being acquired.
pub(super) struct Acquiring {
    pub(super) ask: Arc<AcquireRequest>,
    pub(super) asked_at: Moment,
    /// The session in whose name it was sent, if it ever was.
    pub(super) session: Option<Arc<Session>>,
    pub(super) reply: oneshot::Sender<Result<Arc<Grant>, Error>>,
}

/// A lock that is being released.
pub(super) struct Releasing {
    pub(super) held: Held,
    /// `None` if it is released in the background.
    pub(super) reply: Option<oneshot::Sender<Result<(), Error>>>,
}

/// A grant that we hold.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) grant: Arc<Grant>,
    pub(super) session: Arc<Session>,
    pub(super) request: SmolStr,
}

impl Acquiring {
    /// When it has been in hand for too long: while we are connected, the cell ends the wait by itself, and we allow for
    /// its answer to be late; while we are not, the wait ends here.
    pub(super) fn give_up(&self, request_timeout: Duration, connected: bool) -> Moment {
        match (self.ask.wait, connected) {
            (Wait::Forever, _) => Moment::NEVER,
            (Wait::No, _) => self.asked_at.plus(request_timeout),
            (Wait::For(limit), true) => self.asked_at.plus(limit.saturating_add(request_timeout)),
            (Wait::For(limit), false) => self.asked_at.plus(limit.max(request_timeout)),
        }
    }

    pub(super) fn request_id(&self, number: u64) -> SmolStr {
        self.ask.request_id.clone().unwrap_or_else(|| request_id(number))
    }

    pub(super) fn asked(&self, number: u64, session: &Session, now: Moment) -> Asked {
        // The limit counts from the first call, also when the request is repeated.
        let (wait_ms, wait_forever) = match self.ask.wait {
            Wait::No => (0, false),
            Wait::For(limit) => (as_ms(self.asked_at.plus(limit).since(now)).max(1), false),
            Wait::Forever => (0, true),
        };
        let session = session.id.clone();
        let request = self.request_id(number).into();
        let lock_delay_ms = as_ms(self.ask.lock_delay);
        let (scope, policy) = match &self.ask.scope {
            Some(scope) => (scope.name.to_string(), scope.policy.as_str().to_owned()),
            None => Default::default(),
        };
        match &self.ask.locks {
            Locks::One(lock) => Asked::Acquire(lockkeeper_api::v1::AcquireRequest {
                session,
                lock: lock.as_str().to_owned(),
                mode: (self.ask.mode == Mode::Shared).then_some(lockkeeper_api::v1::Mode::Shared as i32),
                permits: self.ask.permits,
                capacity: self.ask.capacity,
                wait_ms,
                wait_forever,
                request,
                lock_delay_ms,
                scope,
                policy,
                value: self.ask.value.as_ref().map(ToString::to_string).unwrap_or_default(),
                brief: true,
            }),
            Locks::Many(locks) => Asked::AcquireAll(AcquireAllRequest {
                session,
                locks: locks.iter().map(|lock| lock.as_str().to_owned()).collect(),
                wait_ms,
                wait_forever,
                request,
                lock_delay_ms,
                scope,
                policy,
                mode: None,
            }),
        }
    }
}

impl Work {
    /// Sending it twice is the same as sending it once.
    pub(super) fn is_repeatable(&self) -> bool {
        match self {
            Work::Call { repeatable, .. } => *repeatable,
            _ => true,
        }
    }

    /// The session that it names.
    pub(super) fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Work::Acquire(acquiring) => acquiring.session.as_ref(),
            Work::Release(releasing) => Some(&releasing.held.session),
            Work::Cancel { session, .. } | Work::Attach { session } | Work::CloseSession { session } => {
                Some(session)
            }
            Work::Call { .. } | Work::Open { .. } | Work::KeepAlive { .. } => None,
        }
    }

    /// The lock that it is about, for texts.
    pub(super) fn lock_name(&self) -> SmolStr {
        match self {
            Work::Acquire(acquiring) => acquiring.ask.locks.as_slice()[0].clone(),
            Work::Release(releasing) => releasing.held.grant.name().clone(),
            _ => SmolStr::default(),
        }
    }

    /// The operation, for all kinds that need no more than what they carry.
    pub(super) fn asked(&mut self, owner: &str, now: Moment) -> Asked {
        match self {
            // Invariant: an acquire is sent with `Acquiring::asked`, once its session is ready.
            Work::Acquire(_) => unreachable!("an acquire needs a session"),
            Work::Release(releasing) => {
                let Held { grant, session, request } = &releasing.held;
                match &grant.locks {
                    Locks::One(lock) => Asked::Release(ReleaseRequest {
                        session: session.id.clone(),
                        lock: lock.as_str().to_owned(),
                        token: grant.token.unwrap_or_default().0,
                        forget: true,
                    }),
                    // Gives all of them back in one step.
                    Locks::Many(_) => Asked::Cancel(CancelRequest {
                        session: session.id.clone(),
                        request: request.as_str().to_owned(),
                    }),
                }
            }
            Work::Cancel { session, request } => Asked::Cancel(CancelRequest {
                session: session.id.clone(),
                request: request.as_str().to_owned(),
            }),
            Work::Call { asked, .. } => Asked::clone(asked),
            Work::Open { ttl, sent_at } => {
                *sent_at = now;
                Asked::OpenSession(OpenSessionRequest { ttl_ms: as_ms(*ttl), owner: owner.to_owned() })
            }
            Work::Attach { session } => Asked::Attach(AttachRequest { session: session.id.clone() }),
            Work::KeepAlive { sessions, sent_at } => {
                *sent_at = now;
                Asked::KeepAlive(KeepAliveAll {
                    sessions: sessions.iter().map(|session| session.id.clone()).collect(),
                })
            }
            Work::CloseSession { session } => {
                Asked::CloseSession(CloseSessionRequest { session: session.id.clone() })
            }
        }
    }
}

pub(super) fn as_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A request's number in base 36: short enough to be kept inline everywhere.
pub(super) fn request_id(mut number: u64) -> SmolStr {
    let mut text = [0u8; 13];
    let mut start = text.len();
    loop {
        start -= 1;
        text[start] = b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize];
        number /= 36;
        if number == 0 {
            break;
        }
    }
    SmolStr::new(std::str::from_utf8(&text[start..]).unwrap_or_default())
}

/// Numbers are drawn in order and need no more than to be spread.
#[derive(Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte) ^ self.0);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

pub(super) type ByNumber<T> = std::collections::HashMap<u64, T, BuildHasherDefault<NumberHasher>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_are_short_and_distinct() {
        assert_eq!(request_id(0), "0");
        assert_eq!(request_id(35), "z");
        assert_eq!(request_id(36), "10");
        assert!(request_id(u64::MAX).len() <= 13);
    }

    #[test]
    fn waits_are_rounded_up() {
        assert_eq!(as_ms(Duration::from_micros(1)), 1);
        assert_eq!(as_ms(Duration::from_millis(7)), 7);
    }
}
