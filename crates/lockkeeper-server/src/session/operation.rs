//! One operation of a client's frame: queued for the log, or answered at once.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::v1::{self, answer};
use lockkeeper_api::{Operation, ReplyShape, Request, election_lock, operation, session_id};
use lockkeeper_core::{Command, Wait};

use super::connection::Connection;
use super::costs;
use crate::api::{Admitted, Api, check_request_id};
use crate::budget::ConnectionBudget;
use crate::callers::Caller;
use crate::failure::Failure;

/// An observer is answered after this time, even if nothing has changed.
const OBSERVED_FOR: Duration = Duration::from_secs(30);

/// Most sessions in one renewal, which is carried out in one go.
const SESSIONS_PER_RENEWAL_MAX: usize = 8_192;

/// Carries out one operation.
pub(super) fn carry_out(
    api: &mut Api,
    connection: &Arc<Connection>,
    budget: &ConnectionBudget,
    operation: v1::Operation,
) {
    let id = operation.id;
    let has_room = connection.begin();
    // What frees, ends or renews something is always accepted (S11).
    if !has_room && operation.kind.as_ref().is_none_or(operation::asks_for_more) {
        let overload = Failure::Overload {
            why: "too many operations of this stream wait for their answer".into(),
            retry_after_ms: api.shared().queue.retry_after_ms(),
        };
        return connection.fail(id, overload);
    }
    let done = match operation.kind {
        None => {
            Err(Failure::Invalid("an operation has no kind: this client is newer than the node".to_owned()))
        }
        Some(kind) => Operation::try_from(kind)
            .map_err(Failure::from)
            .and_then(|operation| run(api, connection, budget, id, operation)),
    };
    if let Err(failure) = done {
        connection.fail(id, failure);
    }
}

fn run(
    api: &mut Api,
    connection: &Arc<Connection>,
    budget: &ConnectionBudget,
    id: u64,
    operation: Operation,
) -> Result<(), Failure> {
    match operation {
        Operation::Request(request) => submit(api, connection, id, request, ReplyShape::Full)?,
        Operation::BriefAcquire(request) => {
            submit(api, connection, id, request, ReplyShape::BriefAcquire)?;
        }
        Operation::KeepAlive(request) => connection.send(id, keep_alive(api, &request)?),
        Operation::Attach(request) => connection.send(id, attach(api, connection, &request)?),
        Operation::Observe(request) => observe(api, connection, id, request)?,
        Operation::Authenticate(request) => {
            *api = api.with_token(&request.token)?;
            connection.recognise();
            connection.set_viewer(api);
            connection.set_budget(api.budget(budget));
            connection.send(id, answer::Kind::Done(v1::Done {}));
        }
    }
    Ok(())
}

/// Queues the command that a request becomes, or answers the request at once.
fn submit(
    api: &Api,
    connection: &Arc<Connection>,
    id: u64,
    request: Request,
    shape: ReplyShape,
) -> Result<(), Failure> {
    match api.admit(request)? {
        Admitted::Command(command) => {
            must_have_request_id(&command)?;
            let shape = command.opens().map_or(shape, ReplyShape::Opening);
            api.shared().submit(command, Caller::Stream { connection: connection.clone(), id, shape });
        }
        Admitted::Read(request) => {
            connection.check_read()?;
            connection.send(id, api.read(request)?.try_into()?);
        }
        Admitted::Steps(_) => {
            return Err(Failure::Unsupported("this is a call of its own, not an operation".to_owned()));
        }
    }
    Ok(())
}

/// On a stream a request that may wait needs an id: a client that was cut off finds it again by it.
fn must_have_request_id(command: &Command) -> Result<(), Failure> {
    let Command::Acquire(request) = command else { return Ok(()) };
    match &request.request {
        Some(id) => check_request_id(id),
        None if request.wait == Wait::No => Ok(()),
        None => Err(Failure::Invalid("a request that waits on a stream needs a request id".to_owned())),
    }
}

fn keep_alive(api: &Api, request: &v1::KeepAliveAll) -> Result<answer::Kind, Failure> {
    // A renewal of nothing is a question: do you still lead? Otherwise each session asks by itself.
    if request.sessions.is_empty() {
        api.may_answer()?;
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
        ttl_ms.push(match session_id(session) {
            Ok(session) => api.keep_alive(session)?.unwrap_or(0),
            Err(_) => 0,
        });
    }
    Ok(answer::Kind::KeepAlive(v1::KeepAliveAllResponse { ttl_ms }))
}

fn attach(
    api: &Api,
    connection: &Arc<Connection>,
    request: &v1::AttachRequest,
) -> Result<answer::Kind, Failure> {
    if costs::has_many_grants(api, request) {
        connection.check_read()?;
    }
    let (ttl_ms, grants) = api.attach(session_id(&request.session)?, connection)?;
    let grants = grants.iter().map(v1::Grant::from).collect();
    Ok(answer::Kind::Attach(v1::AttachResponse { ttl_ms, grants }))
}

/// Answers when somebody else leads than the caller knows, or after a while.
fn observe(
    api: &Api,
    connection: &Arc<Connection>,
    id: u64,
    request: v1::ObserveElectionRequest,
) -> Result<(), Failure> {
    let lock = election_lock(&request.election)?;
    let seen = api.election(&lock)?;
    let Some(known) = request.known_epoch else {
        connection.send(id, answer::Kind::Election(seen.into()));
        return Ok(());
    };
    let wait = match request.wait_ms {
        0 => OBSERVED_FOR,
        ms => OBSERVED_FOR.min(Duration::from_millis(ms)),
    };
    let (api, connection) = (api.clone(), Arc::downgrade(connection));
    tokio::spawn(async move {
        let seen = tokio::time::timeout(wait, api.next_leader(&lock, Some(known))).await;
        let Some(connection) = connection.upgrade() else { return };
        match seen.unwrap_or_else(|_| api.election(&lock)) {
            Ok(seen) => connection.send(id, answer::Kind::Election(seen.into())),
            Err(failure) => connection.fail(id, failure),
        }
    });
    Ok(())
}
