//! Converts the operations of a stream to requests.

use lockkeeper_core::Refusal;

use crate::request::Request;
use crate::v1::operation::Kind;
use crate::v1::{AttachRequest, AuthenticateRequest, KeepAliveAll, ObserveElectionRequest};

/// An operation on a stream.
#[derive(Debug)]
pub enum Operation {
    /// A request, as with all other protocols.
    Request(Request),
    /// An acquire whose answer needs no names.
    BriefAcquire(Request),
    /// Renews several sessions.
    KeepAlive(KeepAliveAll),
    /// Attaches the stream to a session.
    Attach(AttachRequest),
    /// Authenticates the client.
    Authenticate(AuthenticateRequest),
    /// Waits for a leader other than the known one.
    Observe(ObserveElectionRequest),
}

impl TryFrom<Kind> for Operation {
    type Error = Refusal;

    #[inline]
    fn try_from(kind: Kind) -> Result<Operation, Refusal> {
        Ok(Operation::Request(match kind {
            Kind::Acquire(request) if request.brief => {
                return Ok(Operation::BriefAcquire(request.try_into()?));
            }
            Kind::Acquire(request) => request.try_into()?,
            Kind::Release(request) => request.try_into()?,
            Kind::KeepAlive(request) => return Ok(Operation::KeepAlive(request)),
            Kind::Attach(request) => return Ok(Operation::Attach(request)),
            Kind::Authenticate(request) => return Ok(Operation::Authenticate(request)),
            Kind::ObserveElection(request) => return Ok(Operation::Observe(request)),
            Kind::OpenSession(request) => request.into(),
            Kind::CloseSession(request) => request.try_into()?,
            Kind::AcquireAll(request) => request.try_into()?,
            Kind::Cancel(request) => request.try_into()?,
            Kind::ForceRelease(request) => request.into(),
            Kind::PutValue(request) => request.into(),
            Kind::DeleteValue(request) => request.into(),
            Kind::HandOver(request) => request.try_into()?,
            Kind::TakeRate(request) => request.try_into()?,
            Kind::GetLock(request) => request.try_into()?,
            Kind::ListLocks(request) => request.into(),
            Kind::CheckToken(request) => request.try_into()?,
            Kind::GetValue(request) => request.try_into()?,
            Kind::Status(request) => request.into(),
            Kind::GetHistory(request) => request.try_into()?,
            Kind::GetAudit(request) => request.into(),
            Kind::GetTop(request) => request.into(),
            Kind::GetWaitGraph(request) => request.try_into()?,
        }))
    }
}

impl Operation {
    /// Whether it adds work, which a stream with too many open operations refuses. Operations that free, end or renew
    /// something do not.
    pub fn adds_work(&self) -> bool {
        match self {
            Operation::Request(Request::Command(command)) => !command.frees(),
            Operation::Request(_) | Operation::BriefAcquire(_) | Operation::Observe(_) => true,
            Operation::KeepAlive(_) | Operation::Attach(_) | Operation::Authenticate(_) => false,
        }
    }
}
