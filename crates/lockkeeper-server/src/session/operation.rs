//! One operation of a client's frame: queued for the log, or answered at once.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::v1::{self, answer};
use lockkeeper_api::{Operation, ReplyShape, Request, election_lock, session_id};
use lockkeeper_core::{Command, Wait};

use super::connection::Connection;
use super::costs;
use crate::api::{Admitted, Api, check_request_id};
use crate::effects::callers::Caller;
use crate::failure::Failure;
use crate::limits::budget::ConnectionBudget;

/// An observer is answered after this time even if nothing has changed.
const OBSERVED_FOR: Duration = Duration::from_secs(30);

/// Most sessions in one renewal, which runs without interruption.
const SESSIONS_PER_RENEWAL_MAX: usize = 8_192;

/// Carries out one operation.
pub(super) fn carry_out(
    api: &mut Api,
    connection: &Arc<Connection>,
    budget: &ConnectionBudget,
    operation: v1::Operation,
) {
    let id = operation.id;
    let has_room = connection.begin_operation();
    let done = parse(operation.kind).and_then(|operation| {
        // Operations that free, end or renew something are always accepted (S11).
        if !has_room && operation.adds_work() {
            return Err(Failure::Overload {
                why: "too many unanswered operations on this stream".into(),
                retry_after_ms: api.shared().queue.retry_after_ms(),
            });
        }
        run(api, connection, budget, id, operation)
    });
    if let Err(failure) = done {
        connection.fail(id, failure);
    }
}

fn parse(kind: Option<v1::operation::Kind>) -> Result<Operation, Failure> {
    let kind = kind.ok_or_else(|| {
        Failure::Invalid("unknown kind of operation: the client is newer than this node".to_owned())
    })?;
    Ok(Operation::try_from(kind)?)
}

fn run(
    api: &mut Api,
    connection: &Arc<Connection>,
    budget: &ConnectionBudget,
    id: u64,
    operation: Operation,
) -> Result<(), Failure> {
    match operation {
        Operation::Request(request) => carry_out_request(api, connection, id, request, ReplyShape::Full)?,
        Operation::BriefAcquire(request) => {
            carry_out_request(api, connection, id, request, ReplyShape::BriefAcquire)?;
        }
        Operation::KeepAlive(request) => connection.send(id, keep_alive(api, &request)?),
        Operation::Attach(request) => connection.send(id, attach(api, connection, &request)?),
        Operation::Observe(request) => observe(api, connection, budget, id, request)?,
        Operation::Authenticate(request) => {
            *api = api.with_token(&request.token)?;
            connection.set_authenticated();
            connection.set_viewer(api);
            connection.set_budget(api.budget(budget));
            connection.send(id, answer::Kind::Done(v1::Done {}));
        }
    }
    Ok(())
}

/// Queues the command of a request, or answers a read at once.
fn carry_out_request(
    api: &Api,
    connection: &Arc<Connection>,
    id: u64,
    request: Request,
    shape: ReplyShape,
) -> Result<(), Failure> {
    match api.admit(request)? {
        Admitted::Command(command) => {
            check_has_request_id(&command)?;
            let shape = command.opens().map_or(shape, ReplyShape::Opening);
            api.shared().submit(command, Caller::Stream { connection: connection.clone(), id, shape });
        }
        Admitted::Read(request) => {
            connection.check_read()?;
            connection.send(id, api.read(request)?.try_into()?);
        }
        Admitted::Steps(_) => {
            return Err(Failure::Unsupported(
                "this request is not supported on a stream: use the unary call".to_owned(),
            ));
        }
    }
    Ok(())
}

/// Checks that a request that may wait has an id. A client that reconnects finds its request by it.
fn check_has_request_id(command: &Command) -> Result<(), Failure> {
    let Command::Acquire(request) = command else { return Ok(()) };
    match &request.request {
        Some(id) => check_request_id(id),
        None if request.wait == Wait::No => Ok(()),
        None => Err(Failure::Invalid("an acquire that waits needs a request id on a stream".to_owned())),
    }
}

fn keep_alive(api: &Api, request: &v1::KeepAliveAll) -> Result<answer::Kind, Failure> {
    // An empty renewal asks whether this node still leads. Otherwise the renewal of each session checks it.
    if request.sessions.is_empty() {
        api.check_leads()?;
    }
    if request.sessions.len() > SESSIONS_PER_RENEWAL_MAX {
        return Err(Failure::TooLarge(format!(
            "{} sessions in one renewal, at most {SESSIONS_PER_RENEWAL_MAX} are allowed: split them into several \
             operations",
            request.sessions.len()
        )));
    }
    let mut ttl_ms = Vec::with_capacity(request.sessions.len());
    for session in &request.sessions {
        // A malformed id is answered as a lost session, like an unknown one.
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

/// Answers when the leader differs from the one that the caller knows, or after a timeout.
fn observe(
    api: &Api,
    connection: &Arc<Connection>,
    budget: &ConnectionBudget,
    id: u64,
    request: v1::ObserveElectionRequest,
) -> Result<(), Failure> {
    let lock = election_lock(&request.election)?;
    let seen = api.election(&lock)?;
    let known = match request.known_epoch {
        Some(known) if known == seen.epoch() => known,
        _ => {
            connection.send(id, answer::Kind::Election(seen.into()));
            return Ok(());
        }
    };
    let seat = api.budget(budget).admit_observer()?;
    let wait = match request.wait_ms {
        0 => OBSERVED_FOR,
        ms => OBSERVED_FOR.min(Duration::from_millis(ms)),
    };
    let (api, observed) = (api.clone(), Arc::downgrade(connection));
    connection.spawn(async move {
        let seen = tokio::time::timeout(wait, api.next_leader(&lock, Some(known))).await;
        let seen = seen.unwrap_or_else(|_| api.election(&lock));
        drop(seat);
        let Some(connection) = observed.upgrade() else { return };
        match seen {
            Ok(seen) => connection.send(id, answer::Kind::Election(seen.into())),
            Err(failure) => connection.fail(id, failure),
        }
    });
    Ok(())
}
