//! Every operation of a stream in its most expensive form.

use lockkeeper_api::v1;
use lockkeeper_api::v1::operation::Kind;

use super::contract;
use super::holdings::{Holdings, candidate, waiting_request, waits};

/// Names that the adversary uses repeatedly.
pub const CROWDED: &str = "adversary/crowded";
pub const VALUE: &str = "adversary/value";
/// Operations of a frame.
const OPERATIONS: usize = 1_000;
/// Elections that one frame observes, each of another name.
const OBSERVED: u64 = 1_000;

/// The name of an operation in the contract. A new kind does not compile without one.
fn name_of(kind: &Kind) -> &'static str {
    match kind {
        Kind::OpenSession(_) => "open_session",
        Kind::KeepAlive(_) => "keep_alive",
        Kind::CloseSession(_) => "close_session",
        Kind::Acquire(_) => "acquire",
        Kind::AcquireAll(_) => "acquire_all",
        Kind::Release(_) => "release",
        Kind::Cancel(_) => "cancel",
        Kind::Attach(_) => "attach",
        Kind::GetLock(_) => "get_lock",
        Kind::ListLocks(_) => "list_locks",
        Kind::CheckToken(_) => "check_token",
        Kind::ForceRelease(_) => "force_release",
        Kind::PutValue(_) => "put_value",
        Kind::GetValue(_) => "get_value",
        Kind::DeleteValue(_) => "delete_value",
        Kind::Status(_) => "status",
        Kind::GetHistory(_) => "get_history",
        Kind::GetAudit(_) => "get_audit",
        Kind::GetTop(_) => "get_top",
        Kind::GetWaitGraph(_) => "get_wait_graph",
        Kind::HandOver(_) => "hand_over",
        Kind::TakeRate(_) => "take_rate",
        Kind::ObserveElection(_) => "observe_election",
        Kind::Authenticate(_) => "authenticate",
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
    let crowded = |request: String| waits(session, CROWDED, request);
    let mut kinds = vec![
        // The same waiting request again, a new one, one that is refused at once.
        Kind::Acquire(crowded("the same".into())),
        Kind::Acquire(v1::AcquireRequest {
            value: candidate(),
            scope: format!("waiting-{}", round % 1_000),
            ..crowded(format!("request-{}", round % 1_000))
        }),
        Kind::Acquire(acquire(session, CROWDED)),
        Kind::Acquire(acquire(session, long("held", round % 2_000))),
        Kind::Acquire(v1::AcquireRequest {
            mode: Some(v1::Mode::Shared.into()),
            lock_delay_ms: 60_000,
            value: candidate(),
            ..acquire(session, long("shared", round % 100))
        }),
        Kind::Acquire(v1::AcquireRequest {
            permits: Some(1),
            capacity: Some(1_000_000),
            ..acquire(session, "adversary/counted")
        }),
        Kind::Acquire(v1::AcquireRequest {
            value: candidate(),
            ..waits(
                session,
                &format!("election/adversary/{}", round % 10),
                format!("candidate-{}", round % 100),
            )
        }),
    ];
    for policy in ["detect", "wait_die", "wound_wait"] {
        kinds.push(Kind::AcquireAll(acquire_all(session, round, policy)));
        kinds.push(Kind::Acquire(v1::AcquireRequest {
            scope: format!("scope-{}", round % 8),
            policy: policy.into(),
            ..crowded(format!("{policy}-{}", round % 200))
        }));
    }
    kinds
}

/// Operations that use up what the adversary holds.
fn ends(holdings: &Holdings) -> Vec<Kind> {
    let session = &holdings.holder;
    let mut kinds: Vec<Kind> =
        holdings.held.iter().map(|(lock, token)| release(session, lock, *token)).collect();
    let (election, epoch) = holdings.handed_over.clone();
    let (resigned, resigned_epoch) = &holdings.resigned;
    kinds.extend([
        Kind::HandOver(v1::HandOverRequest { session: session.clone(), election, epoch, to: candidate() }),
        release(session, &format!("election/{resigned}"), *resigned_epoch),
        Kind::ForceRelease(v1::ForceReleaseRequest {
            lock: holdings.crowd.clone(),
            reason: "r".repeat(1_000),
        }),
        Kind::DeleteValue(v1::DeleteValueRequest { key: holdings.value.clone(), ..Default::default() }),
        Kind::CloseSession(v1::CloseSessionRequest { session: holdings.full.clone() }),
    ]);
    kinds
}

fn release(session: &str, lock: &str, token: u64) -> Kind {
    let (session, lock) = (session.to_owned(), lock.to_owned());
    Kind::Release(v1::ReleaseRequest { session, lock, token, forget: true })
}

/// Operations that can be repeated.
fn repeatable(session: &str, token: &str, holdings: &Holdings, round: u64) -> Vec<Kind> {
    let session = session.to_owned();
    let mut kinds = acquires(&session, round);
    kinds.extend([
        Kind::Authenticate(v1::AuthenticateRequest { token: token.to_owned() }),
        Kind::OpenSession(v1::OpenSessionRequest { ttl_ms: 1_000, owner: "o".repeat(500) }),
        Kind::KeepAlive(v1::KeepAliveAll { sessions: vec![session.clone(); 8_000] }),
        Kind::Cancel(v1::CancelRequest { session: holdings.waiter.clone(), request: waiting_request(round) }),
        // The session of the most grants, rarely: it closes the connections that attached it before.
        Kind::Attach(v1::AttachRequest {
            session: if round.is_multiple_of(8) { session.clone() } else { holdings.full.clone() },
        }),
        Kind::GetLock(v1::GetLockRequest { lock: CROWDED.into() }),
        Kind::ListLocks(v1::ListLocksRequest { limit: 1_000, ..Default::default() }),
        Kind::CheckToken(v1::CheckTokenRequest { lock: CROWDED.into(), token: 1, ..Default::default() }),
        Kind::PutValue(v1::PutValueRequest {
            key: format!("adversary/{}", round % 16),
            value: vec![1; 60 << 10],
            ..Default::default()
        }),
        Kind::GetValue(v1::GetValueRequest { key: VALUE.into() }),
        Kind::Status(v1::StatusRequest {}),
        Kind::GetHistory(v1::GetHistoryRequest { lock: CROWDED.into(), ..Default::default() }),
        Kind::GetAudit(v1::GetAuditRequest { limit: u32::MAX }),
        Kind::GetTop(v1::GetTopRequest { limit: u32::MAX }),
        Kind::GetWaitGraph(v1::GetWaitGraphRequest::default()),
        Kind::TakeRate(v1::TakeRateRequest {
            limiter: long("rate", round),
            rate_per_s: 1.0,
            burst: 1,
            ..Default::default()
        }),
        Kind::ObserveElection(v1::ObserveElectionRequest {
            election: "adversary/0".into(),
            ..Default::default()
        }),
    ]);
    kinds
}

/// Observes an election that does not change: not answered.
fn observe(number: u64) -> Kind {
    Kind::ObserveElection(v1::ObserveElectionRequest {
        election: long("observed", number),
        known_epoch: Some(0),
        ..Default::default()
    })
}

/// The operations of a frame, and their names. The largest of them occur once.
pub fn frame(session: &str, token: &str, holdings: &Holdings, round: u64) -> (Vec<Kind>, Vec<&'static str>) {
    let (large, mut small): (Vec<Kind>, Vec<Kind>) = repeatable(session, token, holdings, round)
        .into_iter()
        .partition(|kind| matches!(kind, Kind::PutValue(_) | Kind::KeepAlive(_) | Kind::AcquireAll(_)));
    // Each round begins elsewhere: on a slow machine it ends before all of them are answered.
    let start = round as usize * 7 % small.len();
    small.rotate_left(start);
    let many: Vec<Kind> = match round % 4 {
        3 => (0..OBSERVED).map(|number| observe(OBSERVED * round + number)).collect(),
        _ => small.iter().cycle().take(OPERATIONS).cloned().collect(),
    };
    let all = v1::AcquireAllRequest {
        session: holdings.holder.clone(),
        locks: (0..100).map(|place| long("all-of-stream", 100 * holdings.number + place)).collect(),
        ..Default::default()
    };
    let kinds: Vec<Kind> =
        ends(holdings).into_iter().chain([Kind::AcquireAll(all)]).chain(large).chain(many).collect();
    let names = kinds.iter().map(name_of).collect();
    (kinds, names)
}

#[test]
fn every_operation_of_a_stream_is_covered() {
    let mut holdings = Holdings::default();
    holdings.held.push(("lock".into(), 1));
    let (_, mut names) = frame("s", "t", &holdings, 0);
    names.sort_unstable();
    names.dedup();
    let mut expected = contract::stream_operations();
    expected.sort_unstable();
    assert_eq!(names, expected);
}
