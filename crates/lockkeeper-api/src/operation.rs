//! The operations of a stream as requests.

use lockkeeper_core::Refusal;

use crate::request::Request;
use crate::v1::operation::Kind;
use crate::v1::{AttachRequest, AuthenticateRequest, KeepAliveAll, ObserveElectionRequest};

/// An operation on a stream.
#[derive(Debug)]
pub enum Operation {
    /// A request, as with every other protocol.
    Request(Request),
    /// An acquire whose caller needs no names in its answer.
    BriefAcquire(Request),
    /// Renews several sessions.
    KeepAlive(KeepAliveAll),
    /// The stream now speaks for a session.
    Attach(AttachRequest),
    /// The client shows who it is.
    Authenticate(AuthenticateRequest),
    /// Waits for another leader than the one that is known.
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

/// Whether an operation asks for something new, which a stream with too many open operations refuses.
pub fn asks_for_more(kind: &Kind) -> bool {
    match kind {
        Kind::Release(_)
        | Kind::Cancel(_)
        | Kind::CloseSession(_)
        | Kind::KeepAlive(_)
        | Kind::Attach(_)
        | Kind::ForceRelease(_)
        | Kind::HandOver(_)
        | Kind::Authenticate(_)
        | Kind::DeleteValue(_) => false,
        Kind::OpenSession(_)
        | Kind::Acquire(_)
        | Kind::AcquireAll(_)
        | Kind::GetLock(_)
        | Kind::ListLocks(_)
        | Kind::CheckToken(_)
        | Kind::PutValue(_)
        | Kind::GetValue(_)
        | Kind::GetHistory(_)
        | Kind::GetAudit(_)
        | Kind::GetTop(_)
        | Kind::GetWaitGraph(_)
        | Kind::TakeRate(_)
        | Kind::ObserveElection(_)
        | Kind::Status(_) => true,
    }
}
