//! Between the wire and the lock table.

use lockkeeper_api::v1;
use lockkeeper_api::v1::answer;
use lockkeeper_core::history::ShortSession;
use lockkeeper_core::limits::INTERVAL_NS_MAX;
use lockkeeper_core::{
    Acquire, Command, Fence, Grant, LockView, Locks, Mode, Policy, Reply, Sequencer, SessionId, TakeRate,
    Token, Wait, Waiting,
};
use smol_str::SmolStr;

use crate::failure::{Failure, Outcome};
use crate::raft::{Disagreement, MemberStatus};

/// What has to be known of an operation on a stream to answer it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyShape {
    /// It opens this session.
    Opening(SessionId),
    /// An acquire whose caller needs no names in its answer.
    BriefAcquire,
    /// Any other.
    Full,
}

impl ReplyShape {
    /// The session that it opens.
    pub fn opens(&self) -> Option<SessionId> {
        match self {
            ReplyShape::Opening(session) => Some(*session),
            ReplyShape::BriefAcquire | ReplyShape::Full => None,
        }
    }
}

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

/// A policy by its word.
pub fn policy(word: &str) -> Result<Policy, Failure> {
    match word {
        "" | "detect" => Ok(Policy::Detect),
        "wait_die" => Ok(Policy::WaitDie),
        "wound_wait" => Ok(Policy::WoundWait),
        other => Err(Failure::Invalid(format!(
            "the policy \"{other}\" is neither \"detect\" nor \"wait_die\" nor \"wound_wait\""
        ))),
    }
}

fn mode_in(number: Option<i32>) -> Result<Option<Mode>, Failure> {
    let word = |number| v1::Mode::try_from(number).map(mode);
    number
        .map(word)
        .transpose()
        .map_err(|_| Failure::Invalid("mode is neither EXCLUSIVE nor SHARED".to_owned()))
}

/// An acquire of one lock.
pub fn acquire_command(request: v1::AcquireRequest) -> Result<Command, Failure> {
    let asked = mode_in(request.mode)?;
    Ok(Command::Acquire(Acquire {
        session: session(&request.session)?,
        request: some_text(request.request),
        locks: Locks::One(request.lock.into()),
        mode: asked.unwrap_or_default(),
        permits: permits_meant(asked, request.permits, request.capacity),
        capacity: request.capacity,
        wait: wait(request.wait_ms, request.wait_forever),
        lock_delay_ms: request.lock_delay_ms,
        scope: some_text(request.scope),
        policy: policy(&request.policy)?,
        value: some_text(request.value),
    }))
}

/// An acquire of several locks.
pub fn acquire_all_command(request: v1::AcquireAllRequest) -> Result<Command, Failure> {
    Ok(Command::Acquire(Acquire {
        request: some_text(request.request),
        wait: wait(request.wait_ms, request.wait_forever),
        lock_delay_ms: request.lock_delay_ms,
        scope: some_text(request.scope),
        policy: policy(&request.policy)?,
        mode: mode_in(request.mode)?.unwrap_or_default(),
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
    Command::ForceRelease { lock: request.lock.into(), reason: request.reason.into(), by: SmolStr::default() }
}

/// A candidate, whose election is still to be named.
pub fn candidate(request: &v1::CampaignRequest) -> Result<Acquire, Failure> {
    Ok(Acquire {
        request: some_text(request.request.clone()),
        wait: wait(request.wait_ms, request.wait_forever),
        ..Acquire::new(session(&request.session)?, Locks::One(SmolStr::default()))
    })
}

/// A hand-over of an election.
pub fn hand_over_command(request: v1::HandOverRequest) -> Result<Command, Failure> {
    Ok(Command::HandOver {
        session: session(&request.session)?,
        lock: crate::election::lock_of(&request.election)?,
        token: Token(request.epoch),
        to: request.to.into(),
    })
}

/// A take of a rate limiter.
pub fn take_rate_command(request: v1::TakeRateRequest) -> Result<Command, Failure> {
    let interval_ns = 1e9 / request.rate_per_s;
    if !(request.rate_per_s > 0.0 && (1.0..=INTERVAL_NS_MAX as f64).contains(&interval_ns)) {
        return Err(Failure::Invalid(format!(
            "rate_per_s is {}; it must be between one a day and 10^9 a second",
            request.rate_per_s
        )));
    }
    Ok(Command::TakeRate(TakeRate {
        limiter: request.limiter.into(),
        permits: if request.permits == 0 { 1 } else { request.permits },
        interval_ns: interval_ns.round() as u64,
        burst: request.burst,
    }))
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

/// The same for somebody who knows the names.
fn brief_grant(grant: &Grant) -> v1::Grant {
    v1::Grant { token: grant.token.0, mode: mode_out(grant.mode), ..Default::default() }
}

/// The answer to a command that went through the log.
pub fn answer(about: &ReplyShape, outcome: Outcome) -> answer::Kind {
    match outcome {
        Err(failure) => answer::Kind::Error(failure.to_wire()),
        Ok(Reply::Granted(granted)) => answer::Kind::Grant(match about {
            ReplyShape::BriefAcquire => brief_grant(&granted),
            ReplyShape::Opening(_) | ReplyShape::Full => grant(&granted),
        }),
        Ok(Reply::SessionOpened { ttl_ms, .. }) => answer::Kind::OpenSession(v1::OpenSessionResponse {
            session: about.opens().map(|session| session.to_string()).unwrap_or_default(),
            ttl_ms,
        }),
        Ok(Reply::Forced { released, last_token }) => {
            answer::Kind::ForceRelease(v1::ForceReleaseResponse { released, last_token: last_token.0 })
        }
        Ok(Reply::Rate { allowed, retry_after_ms }) => {
            answer::Kind::TakeRate(v1::TakeRateResponse { allowed, retry_after_ms })
        }
        Ok(Reply::Put { version }) => answer::Kind::PutValue(v1::PutValueResponse { version }),
        Ok(Reply::Done | Reply::Queued { .. }) => answer::Kind::Done(v1::Done {}),
    }
}

/// A lock on the wire. Whoever knows a whole session id can act in its name, so a view has its first digits only.
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
                session: ShortSession::from(holder.session).to_string(),
                token: holder.token.0,
                mode: mode_out(holder.mode),
                owner: holder.owner.to_string(),
                held_ms: holder.held_ms,
                permits: holder.permits,
                scope: holder.scope.to_string(),
                value: holder.value.to_string(),
            })
            .collect(),
        queue: view
            .queue
            .iter()
            .map(|waiter| v1::Waiter {
                session: ShortSession::from(waiter.session).to_string(),
                position: waiter.position,
                mode: mode_out(waiter.mode),
                owner: waiter.owner.to_string(),
                waited_ms: waiter.waited_ms,
                scope: waiter.scope.to_string(),
                value: waiter.value.to_string(),
            })
            .collect(),
    }
}

/// A member of the cell.
pub fn member(member: &MemberStatus, last_log: u64, differs: Option<Disagreement>) -> v1::Member {
    v1::Member {
        node_id: member.node_id,
        address: member.member.client.clone(),
        voter: member.voter,
        peer_address: member.member.peer.clone(),
        matched_index: member.matched,
        lag: member.matched.map(|matched| last_log.saturating_sub(matched)),
        silent_ms: member.silent_ms,
        round_trip_us: member.round_trip.map(|round_trip| round_trip.as_micros() as u64),
        disagreement: differs.map(disagreement),
    }
}

/// Two tables that differ, on the wire.
pub fn disagreement(found: Disagreement) -> v1::Disagreement {
    v1::Disagreement { index: found.index, own_hash: found.own, other_hash: found.other }
}

/// The same for people.
pub fn disagreement_text(found: &v1::Disagreement) -> String {
    Disagreement { index: found.index, own: found.own_hash, other: found.other_hash }.to_string()
}
