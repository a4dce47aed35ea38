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
            Answer::Value(value) => Kind::Value(value.into()),
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

    /// Converts the reply of the lock table to the answer of an operation that went through the log.
    pub fn answer(&self, reply: Reply) -> Result<Kind, WrongAnswer> {
        match (self, reply) {
            (ReplyShape::BriefAcquire, Reply::Granted(granted)) => Ok(Kind::Grant(brief_grant(&granted))),
            (_, reply) => Answer::new(reply, self.opens()).try_into(),
        }
    }
}
