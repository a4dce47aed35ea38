//! One operation of a client's frame: queued for the log, or answered at once from the table.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::v1;
use lockkeeper_api::v1::{answer, operation};
use lockkeeper_core::Command;

use super::connection::Connection;
use super::costs;
use crate::budget::ConnectionBudget;
use crate::callers::Caller;
use crate::calls::Calls;
use crate::failure::Failure;
use crate::wire::{self, ReplyShape};

/// An observer is answered after this time, even if nothing has changed.
const OBSERVED_FOR: Duration = Duration::from_secs(30);

/// Most sessions in one renewal, which is carried out in one go.
const SESSIONS_PER_RENEWAL_MAX: usize = 8_192;

/// Carries out one operation.
pub(super) fn carry_out(
    calls: &mut Calls,
    connection: &Arc<Connection>,
    budget: &ConnectionBudget,
    operation: v1::Operation,
) {
    let id = operation.id;
    let has_room = connection.begin();
    // What frees, ends or renews something is always taken in (S11).
    if !has_room && operation.kind.as_ref().is_none_or(asks_for_more) {
        let overload = Failure::Overload {
            why: "too many operations of this stream wait for their answer".into(),
            retry_after_ms: calls.shared().proposer.retry_after_ms(),
        };
        return connection.fail(id, overload);
    }
    let done = match operation.kind {
        None => {
            Err(Failure::Invalid("an operation has no kind: this client is newer than the node".to_owned()))
        }
        Some(operation::Kind::Authenticate(request)) => calls.with_token(&request.token).map(|known| {
            *calls = known;
            connection.recognise();
            connection.set_viewer(calls);
            connection.set_budget(calls.budget(budget));
            connection.send(id, answer::Kind::Done(v1::Done {}));
        }),
        Some(kind) => run(calls, connection, id, kind),
    };
    if let Err(failure) = done {
        connection.fail(id, failure);
    }
}

/// Whether an operation asks for something new, which a stream that is full has to wait with.
fn asks_for_more(kind: &operation::Kind) -> bool {
    use operation::Kind;
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

fn run(calls: &Calls, connection: &Arc<Connection>, id: u64, kind: operation::Kind) -> Result<(), Failure> {
    use operation::Kind;
    let mut about = ReplyShape::Full;
    let command = match kind {
        Kind::OpenSession(request) => {
            let (session, command) = calls.open_session_command(request.ttl_ms, request.owner.into())?;
            let about = ReplyShape::Opening(session);
            let caller = Caller::Stream { connection: connection.clone(), id, about };
            calls.submit(command, caller);
            return Ok(());
        }
        Kind::Acquire(request) => {
            if request.brief {
                about = ReplyShape::BriefAcquire;
            }
            wire::acquire_command(request).and_then(with_request_id)?
        }
        Kind::AcquireAll(request) => wire::acquire_all_command(request).and_then(with_request_id)?,
        Kind::Release(request) => wire::release_command(request)?,
        Kind::Cancel(request) => wire::cancel_command(request)?,
        Kind::CloseSession(request) => Command::CloseSession { session: wire::session(&request.session)? },
        Kind::ForceRelease(request) => wire::force_release_command(request),
        Kind::PutValue(request) => wire::put_value_command(request),
        Kind::DeleteValue(request) => wire::delete_value_command(request),
        Kind::HandOver(request) => wire::hand_over_command(request)?,
        Kind::TakeRate(request) => wire::take_rate_command(request)?,
        Kind::ObserveElection(request) => {
            observe(calls, connection, id, request)?;
            return Ok(());
        }
        other => {
            match &other {
                Kind::KeepAlive(_) => {}
                Kind::Attach(request) if !costs::has_many_grants(calls, request) => {}
                _ => connection.check_read()?,
            }
            connection.send(id, read(calls, connection, other)?);
            return Ok(());
        }
    };
    let caller = Caller::Stream { connection: connection.clone(), id, about };
    calls.submit(command, caller);
    Ok(())
}

/// On a stream a request that may wait needs an id: it is how a client that was cut off finds it again.
fn with_request_id(command: Command) -> Result<Command, Failure> {
    match &command {
        Command::Acquire(request) if request.request.as_ref().is_some_and(|id| id.starts_with('~')) => Err(
            Failure::Invalid("request ids that begin with ~ are the node's own: choose another".to_owned()),
        ),
        Command::Acquire(request)
            if request.request.is_none() && request.wait != lockkeeper_core::Wait::No =>
        {
            Err(Failure::Invalid("a request that waits on a stream needs a request id".to_owned()))
        }
        _ => Ok(command),
    }
}

/// Answers when somebody else leads than the caller knows, or after a while.
fn observe(
    calls: &Calls,
    connection: &Arc<Connection>,
    id: u64,
    request: v1::ObserveElectionRequest,
) -> Result<(), Failure> {
    let seen = calls.election(&request.election)?;
    let Some(known) = request.known_epoch else {
        connection.send(id, answer::Kind::Election(seen));
        return Ok(());
    };
    let wait = match request.wait_ms {
        0 => OBSERVED_FOR,
        ms => OBSERVED_FOR.min(Duration::from_millis(ms)),
    };
    let (calls, connection) = (calls.clone(), Arc::downgrade(connection));
    tokio::spawn(async move {
        let next = calls.next_leader(&request.election, Some(known));
        let seen = tokio::time::timeout(wait, next).await;
        let Some(connection) = connection.upgrade() else { return };
        match seen.unwrap_or_else(|_| calls.election(&request.election)) {
            Ok(seen) => connection.send(id, answer::Kind::Election(seen)),
            Err(failure) => connection.fail(id, failure),
        }
    });
    Ok(())
}

/// Operations that are answered without the log.
fn read(calls: &Calls, connection: &Arc<Connection>, kind: operation::Kind) -> Result<answer::Kind, Failure> {
    use operation::Kind;
    Ok(match kind {
        Kind::KeepAlive(request) => {
            // A renewal of nothing is a question: do you still lead? Otherwise each session asks by itself.
            if request.sessions.is_empty() {
                calls.may_answer()?;
            }
            if request.sessions.len() > SESSIONS_PER_RENEWAL_MAX {
                return Err(Failure::TooLarge(format!(
                    "{} sessions are to be renewed at once, at most {SESSIONS_PER_RENEWAL_MAX} can be: divide them into several \
                     operations",
                    request.sessions.len()
                )));
            }
            let mut ttl_ms = Vec::with_capacity(request.sessions.len());
            for session in &request.sessions {
                // What cannot be a session is lost, like any other that nobody knows.
                ttl_ms.push(match wire::session(session) {
                    Ok(session) => calls.keep_alive(session)?.unwrap_or(0),
                    Err(_) => 0,
                });
            }
            answer::Kind::KeepAlive(v1::KeepAliveAllResponse { ttl_ms })
        }
        Kind::Attach(request) => {
            let session = wire::session(&request.session)?;
            let (ttl_ms, grants) = calls.attach(session, connection)?;
            answer::Kind::Attach(v1::AttachResponse {
                ttl_ms,
                grants: grants.iter().map(wire::grant).collect(),
            })
        }
        Kind::GetLock(request) => answer::Kind::Lock(wire::lock_state(&calls.lock(&request.lock)?)),
        Kind::ListLocks(request) => {
            let (locks, more) = calls.locks(&request.prefix, &request.after, request.limit)?;
            answer::Kind::Locks(v1::ListLocksResponse {
                locks: locks.iter().map(wire::lock_state).collect(),
                more,
            })
        }
        Kind::CheckToken(request) => answer::Kind::CheckToken(calls.check_token(&request)?),
        Kind::GetValue(request) => answer::Kind::Value(calls.value(&request.key)?),
        Kind::Status(_) => {
            calls.must_be_known()?;
            answer::Kind::Status(calls.status())
        }
        Kind::GetHistory(request) => answer::Kind::History(calls.history(&request)?),
        Kind::GetAudit(request) => answer::Kind::Audit(calls.audit(&request)?),
        Kind::GetTop(request) => answer::Kind::Top(calls.top(&request)?),
        Kind::GetWaitGraph(request) => answer::Kind::WaitGraph(calls.wait_graph(&request)?),
        Kind::OpenSession(_)
        | Kind::CloseSession(_)
        | Kind::Acquire(_)
        | Kind::AcquireAll(_)
        | Kind::Release(_)
        | Kind::Cancel(_)
        | Kind::ForceRelease(_)
        | Kind::PutValue(_)
        | Kind::HandOver(_)
        | Kind::TakeRate(_)
        | Kind::ObserveElection(_)
        | Kind::Authenticate(_)
        | Kind::DeleteValue(_) => {
            return Err(Failure::Invalid("this operation goes through the log".to_owned()));
        }
    })
}
