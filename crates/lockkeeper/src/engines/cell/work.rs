//! Requests to the connection, and its pending work.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::v1::answer::Kind as AnswerKind;
use lockkeeper_api::v1::operation::Kind as OperationKind;
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

/// A request to the connection. The caller chooses the number, which is the operation's ID on the wire.
pub(super) enum Request {
    Acquire {
        number: u64,
        request: Arc<AcquireRequest>,
        requested_at: Moment,
        reply: oneshot::Sender<Result<Arc<Grant>, Error>>,
    },
    /// `number` is the number of the acquire.
    Release {
        number: u64,
        reply: oneshot::Sender<Result<(), Error>>,
    },
    Call {
        number: u64,
        operation: Box<OperationKind>,
        repeatable: bool,
        reply: oneshot::Sender<Result<AnswerKind, Error>>,
    },
    SessionIds {
        reply: oneshot::Sender<Vec<String>>,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
}

/// Pending work, until it is answered.
pub(super) struct Entry {
    /// The ID on the wire. It is the entry's number, unless the link may still answer an older request with that ID.
    pub(super) wire: u64,
    /// It was sent on the current link.
    pub(super) sent: bool,
    /// It was sent on an earlier link without an answer: it may have happened.
    pub(super) resent: bool,
    /// When to check whether its time is over.
    pub(super) give_up: Moment,
    /// The reason of the last `unavailable` answer.
    pub(super) refused: Option<SmolStr>,
    /// The node asked for no retry before this moment.
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
    /// Leaves the queue, or releases what was granted.
    Cancel {
        session: Arc<Session>,
        request: SmolStr,
    },
    Call {
        operation: Box<OperationKind>,
        repeatable: bool,
        reply: oneshot::Sender<Result<AnswerKind, Error>>,
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
    pub(super) request: Arc<AcquireRequest>,
    pub(super) requested_at: Moment,
    /// The session for which it was sent, if it was.
    pub(super) session: Option<Arc<Session>>,
    pub(super) reply: oneshot::Sender<Result<Arc<Grant>, Error>>,
}

/// A lock that is being released.
pub(super) struct Releasing {
    pub(super) held: Held,
    /// `None` if it is released in the background.
    pub(super) reply: Option<oneshot::Sender<Result<(), Error>>>,
}

/// A held grant.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) grant: Arc<Grant>,
    pub(super) session: Arc<Session>,
    pub(super) request: SmolStr,
}

impl Acquiring {
    /// When its time is over. While connected, the cell ends the wait, and its answer may be late; otherwise the wait ends
    /// here.
    pub(super) fn give_up(&self, request_timeout: Duration, connected: bool) -> Moment {
        match (self.request.wait, connected) {
            (Wait::Forever, _) => Moment::NEVER,
            (Wait::No, _) => self.requested_at.plus(request_timeout),
            (Wait::For(limit), true) => self.requested_at.plus(limit.saturating_add(request_timeout)),
            (Wait::For(limit), false) => self.requested_at.plus(limit.max(request_timeout)),
        }
    }

    pub(super) fn request_id(&self, number: u64) -> SmolStr {
        self.request.request_id.clone().unwrap_or_else(|| request_id(number))
    }

    pub(super) fn operation(&self, number: u64, session: &Session, now: Moment) -> OperationKind {
        // The limit counts from the first call, even for a retry.
        let (wait_ms, wait_forever) = match self.request.wait {
            Wait::No => (0, false),
            Wait::For(limit) => (as_ms(self.requested_at.plus(limit).since(now)).max(1), false),
            Wait::Forever => (0, true),
        };
        let session = session.id.clone();
        let request = self.request_id(number).into();
        let lock_delay_ms = as_ms(self.request.lock_delay);
        let (scope, policy) = match &self.request.scope {
            Some(scope) => (scope.name.to_string(), scope.policy.as_str().to_owned()),
            None => Default::default(),
        };
        match &self.request.locks {
            Locks::One(lock) => OperationKind::Acquire(lockkeeper_api::v1::AcquireRequest {
                session,
                lock: lock.as_str().to_owned(),
                mode: (self.request.mode == Mode::Shared).then_some(lockkeeper_api::v1::Mode::Shared as i32),
                permits: self.request.permits,
                capacity: self.request.capacity,
                wait_ms,
                wait_forever,
                request,
                lock_delay_ms,
                scope,
                policy,
                value: self.request.value.as_ref().map(ToString::to_string).unwrap_or_default(),
                brief: true,
            }),
            Locks::Many(locks) => OperationKind::AcquireAll(AcquireAllRequest {
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
    /// Whether sending it twice has the same effect as sending it once.
    pub(super) fn is_repeatable(&self) -> bool {
        match self {
            Work::Call { repeatable, .. } => *repeatable,
            _ => true,
        }
    }

    /// The session of the work.
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

    /// The name of the lock, for messages.
    pub(super) fn lock_name(&self) -> SmolStr {
        match self {
            Work::Acquire(acquiring) => acquiring.request.locks.as_slice()[0].clone(),
            Work::Release(releasing) => releasing.held.grant.name().clone(),
            _ => SmolStr::default(),
        }
    }

    /// The operation, for all kinds except an acquire.
    pub(super) fn operation(&mut self, owner: &str, now: Moment) -> OperationKind {
        match self {
            // Invariant: an acquire is sent with `Acquiring::operation`, once its session is ready.
            Work::Acquire(_) => unreachable!("an acquire needs a session"),
            Work::Release(releasing) => {
                let Held { grant, session, request } = &releasing.held;
                match &grant.locks {
                    Locks::One(lock) => OperationKind::Release(ReleaseRequest {
                        session: session.id.clone(),
                        lock: lock.as_str().to_owned(),
                        token: grant.token.unwrap_or_default().0,
                        forget: true,
                    }),
                    // Releases all of them at once.
                    Locks::Many(_) => OperationKind::Cancel(CancelRequest {
                        session: session.id.clone(),
                        request: request.as_str().to_owned(),
                    }),
                }
            }
            Work::Cancel { session, request } => OperationKind::Cancel(CancelRequest {
                session: session.id.clone(),
                request: request.as_str().to_owned(),
            }),
            Work::Call { operation, .. } => OperationKind::clone(operation),
            Work::Open { ttl, sent_at } => {
                *sent_at = now;
                OperationKind::OpenSession(OpenSessionRequest {
                    ttl_ms: as_ms(*ttl),
                    owner: owner.to_owned(),
                })
            }
            Work::Attach { session } => OperationKind::Attach(AttachRequest { session: session.id.clone() }),
            Work::KeepAlive { sessions, sent_at } => {
                *sent_at = now;
                OperationKind::KeepAlive(KeepAliveAll {
                    sessions: sessions.iter().map(|session| session.id.clone()).collect(),
                })
            }
            Work::CloseSession { session } => {
                OperationKind::CloseSession(CloseSessionRequest { session: session.id.clone() })
            }
        }
    }
}

pub(super) fn as_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The request ID of a number: base 36, short enough to be stored inline.
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

/// Hasher for sequential numbers, which only need to be spread.
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
    fn durations_are_rounded_up_to_milliseconds() {
        assert_eq!(as_ms(Duration::from_micros(1)), 1);
        assert_eq!(as_ms(Duration::from_millis(7)), 7);
    }
}
