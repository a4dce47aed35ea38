//! Every operation of the contract in its most expensive form.

use lockkeeper_api::v1;
use lockkeeper_api::v1::operation::Kind;

/// Names that the adversary uses repeatedly.
pub const CROWDED: &str = "adversary/crowded";
pub const VALUE: &str = "adversary/value";
/// Number of operation kinds of a stream.
const KINDS: usize = 24;

/// The index of a kind. A new kind does not compile without one.
fn index_of(kind: &Kind) -> usize {
    match kind {
        Kind::OpenSession(_) => 0,
        Kind::KeepAlive(_) => 1,
        Kind::CloseSession(_) => 2,
        Kind::Acquire(_) => 3,
        Kind::AcquireAll(_) => 4,
        Kind::Release(_) => 5,
        Kind::Cancel(_) => 6,
        Kind::Attach(_) => 7,
        Kind::GetLock(_) => 8,
        Kind::ListLocks(_) => 9,
        Kind::CheckToken(_) => 10,
        Kind::ForceRelease(_) => 11,
        Kind::PutValue(_) => 12,
        Kind::GetValue(_) => 13,
        Kind::DeleteValue(_) => 14,
        Kind::Status(_) => 15,
        Kind::GetHistory(_) => 16,
        Kind::GetAudit(_) => 17,
        Kind::GetTop(_) => 18,
        Kind::GetWaitGraph(_) => 19,
        Kind::HandOver(_) => 20,
        Kind::TakeRate(_) => 21,
        Kind::ObserveElection(_) => 22,
        Kind::Authenticate(_) => 23,
    }
}

pub fn long(what: &str, number: u64) -> String {
    format!("adversary/{what}/{number}/{}", "n".repeat(400))
}

pub fn acquire(session: &str, lock: impl Into<String>) -> v1::AcquireRequest {
    v1::AcquireRequest { session: session.to_owned(), lock: lock.into(), ..Default::default() }
}

pub fn acquire_all(session: &str, round: u64, policy: &str) -> v1::AcquireAllRequest {
    v1::AcquireAllRequest {
        session: session.to_owned(),
        locks: (0..100).map(|number| long("all", number + round % 2)).collect(),
        scope: format!("scope-{}", round % 8),
        policy: policy.to_owned(),
        wait_forever: true,
        request: format!("all-{}", round % 100),
        ..Default::default()
    }
}

/// All forms of an acquire.
fn acquires(session: &str, round: u64) -> Vec<Kind> {
    let waits =
        |request: String| v1::AcquireRequest { wait_forever: true, request, ..acquire(session, CROWDED) };
    let mut kinds = vec![
        // The same waiting request again, a new one, one that is refused at once.
        Kind::Acquire(waits("the same".into())),
        Kind::Acquire(waits(format!("request-{}", round % 5_000))),
        Kind::Acquire(acquire(session, CROWDED)),
        Kind::Acquire(acquire(session, long("held", round % 2_000))),
        Kind::Acquire(v1::AcquireRequest {
            mode: Some(v1::Mode::Shared.into()),
            lock_delay_ms: 60_000,
            value: "v".repeat(4_000),
            ..acquire(session, long("shared", round % 100))
        }),
        Kind::Acquire(v1::AcquireRequest {
            permits: Some(1),
            capacity: Some(1_000_000),
            ..acquire(session, "adversary/counted")
        }),
        Kind::Acquire(v1::AcquireRequest {
            value: "candidate".repeat(400),
            wait_forever: true,
            request: format!("candidate-{}", round % 100),
            ..acquire(session, format!("election/adversary/{}", round % 10))
        }),
    ];
    for policy in ["detect", "wait_die", "wound_wait"] {
        kinds.push(Kind::AcquireAll(acquire_all(session, round, policy)));
        kinds.push(Kind::Acquire(v1::AcquireRequest {
            scope: format!("scope-{}", round % 8),
            policy: policy.into(),
            ..waits(format!("{policy}-{}", round % 200))
        }));
    }
    kinds
}

/// Every operation of a stream.
pub fn every_operation(session: &str, token: &str, round: u64) -> Vec<Kind> {
    let session = session.to_owned();
    let mut kinds = acquires(&session, round);
    kinds.extend([
        Kind::Authenticate(v1::AuthenticateRequest { token: token.to_owned() }),
        Kind::OpenSession(v1::OpenSessionRequest { ttl_ms: 1_000, owner: "o".repeat(500) }),
        Kind::KeepAlive(v1::KeepAliveAll { sessions: vec![session.clone(); 8_000] }),
        Kind::CloseSession(v1::CloseSessionRequest { session: "0".repeat(32) }),
        Kind::Release(v1::ReleaseRequest {
            session: session.clone(),
            lock: long("held", round % 2_000),
            token: 1,
            forget: true,
        }),
        Kind::Cancel(v1::CancelRequest {
            session: session.clone(),
            request: format!("request-{}", round % 5_000),
        }),
        Kind::Attach(v1::AttachRequest { session: session.clone() }),
        Kind::GetLock(v1::GetLockRequest { lock: CROWDED.into() }),
        Kind::ListLocks(v1::ListLocksRequest { limit: 1_000, ..Default::default() }),
        Kind::CheckToken(v1::CheckTokenRequest { lock: CROWDED.into(), token: 1, ..Default::default() }),
        Kind::ForceRelease(v1::ForceReleaseRequest {
            lock: long("forced", round % 50),
            reason: "r".repeat(1_000),
        }),
        Kind::PutValue(v1::PutValueRequest {
            key: format!("adversary/{}", round % 16),
            value: vec![1; 60 << 10],
            ..Default::default()
        }),
        Kind::GetValue(v1::GetValueRequest { key: VALUE.into() }),
        Kind::DeleteValue(v1::DeleteValueRequest {
            key: format!("adversary/{}", round % 16),
            ..Default::default()
        }),
        Kind::Status(v1::StatusRequest {}),
        Kind::GetHistory(v1::GetHistoryRequest { lock: CROWDED.into(), ..Default::default() }),
        Kind::GetAudit(v1::GetAuditRequest { limit: u32::MAX }),
        Kind::GetTop(v1::GetTopRequest { limit: u32::MAX }),
        Kind::GetWaitGraph(v1::GetWaitGraphRequest::default()),
        Kind::HandOver(v1::HandOverRequest {
            session,
            election: format!("adversary/{}", round % 10),
            epoch: 1,
            to: "candidate".repeat(400),
        }),
        Kind::TakeRate(v1::TakeRateRequest {
            limiter: long("rate", round),
            rate_per_s: 1.0,
            burst: 1,
            ..Default::default()
        }),
        Kind::ObserveElection(v1::ObserveElectionRequest {
            election: format!("adversary/observed/{round}"),
            known_epoch: Some(0),
            ..Default::default()
        }),
    ]);
    kinds
}

/// A frame full of operations. The largest of them occur once.
pub fn frame(session: &str, token: &str, round: u64) -> v1::ClientFrame {
    let kinds = every_operation(session, token, round);
    let (large, small): (Vec<Kind>, Vec<Kind>) = kinds.into_iter().partition(|kind| {
        matches!(kind, Kind::PutValue(_) | Kind::KeepAlive(_) | Kind::AcquireAll(_) | Kind::HandOver(_))
    });
    let authenticate = Kind::Authenticate(v1::AuthenticateRequest { token: token.to_owned() });
    let many = small.iter().cycle().take(1_000).cloned();
    let kinds = [authenticate].into_iter().chain(large).chain(many);
    v1::ClientFrame {
        operations: kinds.zip(1..).map(|(kind, id)| v1::Operation { id, kind: Some(kind) }).collect(),
    }
}

#[test]
fn every_operation_is_covered() {
    let mut places: Vec<usize> = every_operation("s", "t", 0).iter().map(index_of).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places, (0..KINDS).collect::<Vec<_>>());
}
