//! Between the wire and the lock table.

use lockkeeper_core::{
    Acquire, Command, Fence, Grant, LockView, Locks, Mode, Reply, Sequencer, SessionId, Token, Wait, Waiting,
};
use lockkeeper_proto::v1;
use lockkeeper_proto::v1::answer;
use smol_str::SmolStr;

use crate::failure::{Failure, Outcome};
use crate::raft::MemberStatus;

/// A session id as text.
pub fn session(text: &str) -> Result<SessionId, Failure> {
    // Whoever asks with something that cannot be a session has none.
    text.parse().map_err(|_| Failure::Refused(lockkeeper_core::Refusal::SessionLost))
}

fn wait(wait_ms: u64, forever: bool) -> Wait {
    match (forever, wait_ms) {
        (true, _) => Wait::Forever,
        (false, 0) => Wait::No,
        (false, ms) => Wait::ForMs(ms),
    }
}

fn mode(mode: v1::Mode) -> Mode {
    match mode {
        v1::Mode::Exclusive => Mode::Exclusive,
        v1::Mode::Shared => Mode::Shared,
    }
}

fn some_text(text: String) -> Option<SmolStr> {
    (!text.is_empty()).then(|| text.into())
}

/// What the caller said of mode, permits and capacity, made complete: a capacity without mode and permits
/// means one permit of it.
pub fn permits_meant(mode: Option<Mode>, permits: Option<u32>, capacity: Option<u32>) -> Option<u32> {
    match (mode, permits, capacity) {
        (None, None, Some(capacity)) if capacity > 1 => Some(1),
        (_, permits, _) => permits,
    }
}

/// Scopes and policies come with deadlock handling.
pub fn refuse_scope(scope: &str, policy: &str) -> Result<(), Failure> {
    if scope.is_empty() && policy.is_empty() {
        return Ok(());
    }
    Err(Failure::Unsupported("scope and policy are not supported by this version: leave them out".to_owned()))
}

/// An acquire of one lock.
pub fn acquire_command(request: v1::AcquireRequest) -> Result<Command, Failure> {
    refuse_scope(&request.scope, &request.policy)?;
    let asked = match request.mode {
        None => None,
        Some(number) => Some(
            v1::Mode::try_from(number)
                .map(mode)
                .map_err(|_| Failure::Invalid("mode is neither EXCLUSIVE nor SHARED".to_owned()))?,
        ),
    };
    Ok(Command::Acquire(Acquire {
        session: session(&request.session)?,
        request: some_text(request.request),
        locks: Locks::One(request.lock.into()),
        mode: asked.unwrap_or_default(),
        permits: permits_meant(asked, request.permits, request.capacity),
        capacity: request.capacity,
        wait: wait(request.wait_ms, request.wait_forever),
        lock_delay_ms: request.lock_delay_ms,
    }))
}

/// An acquire of several locks.
pub fn acquire_all_command(request: v1::AcquireAllRequest) -> Result<Command, Failure> {
    Ok(Command::Acquire(Acquire {
        request: some_text(request.request),
        wait: wait(request.wait_ms, request.wait_forever),
        lock_delay_ms: request.lock_delay_ms,
        ..Acquire::new(session(&request.session)?, Locks::many(request.locks.into_iter().map(SmolStr::from)))
    }))
}

/// A release.
pub fn release_command(request: v1::ReleaseRequest) -> Result<Command, Failure> {
    Ok(Command::Release {
        session: session(&request.session)?,
        lock: request.lock.into(),
        token: Token(request.token),
        forget: request.forget,
    })
}

/// A wait or a grant that nobody wants any more.
pub fn cancel_command(request: v1::CancelRequest) -> Result<Command, Failure> {
    if request.request.is_empty() {
        return Err(Failure::Invalid("cancel needs the request id of the acquire".to_owned()));
    }
    Ok(Command::Cancel {
        session: session(&request.session)?,
        what: Waiting::Request(request.request.into()),
    })
}

/// A force-release.
pub fn force_release_command(request: v1::ForceReleaseRequest) -> Command {
    Command::ForceRelease { lock: request.lock.into(), reason: request.reason.into() }
}

fn fence(fence: Option<v1::Fence>) -> Option<Fence> {
    fence.map(|fence| Fence { lock: fence.lock.into(), token: Token(fence.token) })
}

/// A write of a value.
pub fn put_value_command(request: v1::PutValueRequest) -> Command {
    Command::PutValue {
        key: request.key.into(),
        value: request.value.into(),
        fence: fence(request.fence),
        if_version: request.if_version,
    }
}

/// A removal of a value.
pub fn delete_value_command(request: v1::DeleteValueRequest) -> Command {
    Command::DeleteValue {
        key: request.key.into(),
        fence: fence(request.fence),
        if_version: request.if_version,
    }
}

fn mode_out(mode: Mode) -> i32 {
    match mode {
        Mode::Exclusive => v1::Mode::Exclusive.into(),
        Mode::Shared => v1::Mode::Shared.into(),
    }
}

/// The sequencer of a grant; empty if it is for several locks.
pub fn sequencer(grant: &Grant) -> String {
    match &grant.locks {
        Locks::One(lock) => {
            Sequencer { lock: lock.clone(), token: grant.token, mode: grant.mode }.to_string()
        }
        Locks::Many(_) => String::new(),
    }
}

/// A grant on the wire.
pub fn grant(grant: &Grant) -> v1::Grant {
    v1::Grant {
        locks: grant.locks.as_slice().iter().map(ToString::to_string).collect(),
        token: grant.token.0,
        mode: mode_out(grant.mode),
        sequencer: sequencer(grant),
    }
}

/// The answer to a command that went through the log.
pub fn answer(opens: Option<SessionId>, outcome: Outcome) -> answer::Kind {
    match outcome {
        Err(failure) => answer::Kind::Error(failure.to_wire()),
        Ok(Reply::Granted(granted)) => answer::Kind::Grant(grant(&granted)),
        Ok(Reply::SessionOpened { ttl_ms, .. }) => answer::Kind::OpenSession(v1::OpenSessionResponse {
            session: opens.map(|session| session.to_string()).unwrap_or_default(),
            ttl_ms,
        }),
        Ok(Reply::Forced { released, last_token }) => {
            answer::Kind::ForceRelease(v1::ForceReleaseResponse { released, last_token: last_token.0 })
        }
        Ok(Reply::Put { version }) => answer::Kind::PutValue(v1::PutValueResponse { version }),
        Ok(Reply::Done | Reply::Queued { .. }) => answer::Kind::Done(v1::Done {}),
    }
}

/// A lock on the wire.
pub fn lock_state(view: &LockView) -> v1::LockState {
    v1::LockState {
        lock: view.name.to_string(),
        capacity: view.capacity,
        last_token: view.last_token.0,
        waiting: view.waiting,
        closed_ms: view.closed_ms,
        holders: view
            .holders
            .iter()
            .map(|holder| v1::Holder {
                session: holder.session.to_string(),
                token: holder.token.0,
                mode: mode_out(holder.mode),
                owner: holder.owner.to_string(),
                held_ms: holder.held_ms,
                permits: holder.permits,
            })
            .collect(),
        queue: view
            .queue
            .iter()
            .map(|waiter| v1::Waiter {
                session: waiter.session.to_string(),
                position: waiter.position,
                mode: mode_out(waiter.mode),
                owner: waiter.owner.to_string(),
                waited_ms: waiter.waited_ms,
            })
            .collect(),
    }
}

/// A member of the cell.
pub fn member(member: &MemberStatus, last_log: u64) -> v1::Member {
    v1::Member {
        node_id: member.node_id,
        address: member.member.client.clone(),
        voter: member.voter,
        peer_address: member.member.peer.clone(),
        matched_index: member.matched,
        lag: member.matched.map(|matched| last_log.saturating_sub(matched)),
        silent_ms: member.silent_ms,
    }
}
