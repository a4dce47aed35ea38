//! Answers on a stream.

use lockkeeper_core::{Reply, SessionId};

use crate::acquire::brief_grant;
use crate::request::{Answer, WrongAnswer};
use crate::v1;
use crate::v1::answer::Kind;

impl TryFrom<Answer> for Kind {
    type Error = WrongAnswer;

    fn try_from(answer: Answer) -> Result<Kind, WrongAnswer> {
        Ok(match answer {
            Answer::Done => Kind::Done(v1::Done {}),
            Answer::Granted(grant) => Kind::Grant((&grant).into()),
            Answer::Forced { released, last_token } => {
                Kind::ForceRelease(v1::ForceReleaseResponse { released, last_token })
            }
            Answer::SessionOpened(opened) => Kind::OpenSession(opened.into()),
            Answer::RateTaken(taken) => Kind::TakeRate(taken.into()),
            Answer::Written(written) => Kind::PutValue(written.into()),
            Answer::Lock(lock) => Kind::Lock(lock.into()),
            Answer::Locks(locks) => Kind::Locks(locks.into()),
            Answer::Token(check) => Kind::CheckToken(check.into()),
            Answer::Value(value) => Kind::Value(value),
            Answer::Election(election) => Kind::Election(election.into()),
            Answer::History(history) => Kind::History(history.into()),
            Answer::Audit(audit) => Kind::Audit(audit.into()),
            Answer::Top(top) => Kind::Top(top.into()),
            Answer::Graph(graph) => Kind::WaitGraph(graph.into()),
            Answer::Status(status) => Kind::Status((*status).into()),
            // Answers of calls that do not exist on a stream.
            other => return Err(other.into()),
        })
    }
}

/// The shape of the answer to an operation on a stream, as far as the reply of the lock table does not determine it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyShape {
    /// The operation opens this session.
    Opening(SessionId),
    /// The operation is an acquire whose answer needs no names.
    BriefAcquire,
    /// Any other operation.
    Full,
}

impl ReplyShape {
    /// Returns the session that the operation opens.
    pub fn opens(&self) -> Option<SessionId> {
        match self {
            ReplyShape::Opening(session) => Some(*session),
            ReplyShape::BriefAcquire | ReplyShape::Full => None,
        }
    }

    /// Converts the reply of the lock table directly to the answer of an operation that went through the log.
    pub fn answer(&self, reply: Reply) -> Kind {
        match reply {
            Reply::Granted(granted) => Kind::Grant(match self {
                ReplyShape::BriefAcquire => brief_grant(&granted),
                ReplyShape::Opening(_) | ReplyShape::Full => (&granted).into(),
            }),
            Reply::SessionOpened { ttl_ms, .. } => {
                let session = self.opens().map(|session| session.to_string()).unwrap_or_default();
                Kind::OpenSession(v1::OpenSessionResponse { session, ttl_ms })
            }
            Reply::Forced { released, last_token } => {
                Kind::ForceRelease(v1::ForceReleaseResponse { released, last_token: last_token.0 })
            }
            Reply::Rate { allowed, retry_after_ms } => {
                Kind::TakeRate(v1::TakeRateResponse { allowed, retry_after_ms })
            }
            Reply::Put { version } => Kind::PutValue(v1::PutValueResponse { version }),
            Reply::Done | Reply::Queued { .. } => Kind::Done(v1::Done {}),
        }
    }
}
