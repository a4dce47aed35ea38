//! Many sessions expire at the same moment: their locks are free soon, and other clients hardly notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_api::v1::{self, answer, operation::Kind};
use lockkeeper_lab::compare::Link;

use crate::harness::cell::Cell;
use crate::harness::http::Http;
use crate::harness::{LONG, attempts};

/// Longer than any step of the setup.
const TTL: Duration = Duration::from_secs(8);
const FEW: usize = 6_000;
const MANY: usize = 30_000;
/// Sessions that are opened before all are renewed.
const OPENED_AT_ONCE: usize = 3_000;
/// Time may grow in proportion to the number of sessions, here five times. The square is 25 times.
const GROWTH_MAX: u32 = 12;
/// Shorter times are not compared.
const COMPARABLE: Duration = Duration::from_millis(150);
/// Sessions that have requested another client's lock in vain, and how often: each request has a remembered answer.
const POLLING: usize = 200;
const ANSWERS: usize = 256;
/// For the debug build on a busy machine. A release build frees the locks of 200,000 sessions within 3 s.
const FREE_WITHIN: Duration = Duration::from_secs(5);
const POLLING_FREE_WITHIN: Duration = Duration::from_secs(1);
/// The longest delay of another client's request.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
const ATTEMPTS: usize = 3;

fn acquire(session: &str, lock: String, request: String) -> Kind {
    Kind::Acquire(v1::AcquireRequest { session: session.to_owned(), lock, request, ..Default::default() })
}

async fn open_sessions(link: &mut Link, count: usize, ttl: Duration) -> Vec<String> {
    let ttl_ms = ttl.as_millis() as u64;
    let open = || Kind::OpenSession(v1::OpenSessionRequest { ttl_ms, ..Default::default() });
    let opened = link.all((0..count).map(|_| open()).collect()).await.unwrap();
    let id = |answer| match answer {
        answer::Kind::OpenSession(opened) => opened.session,
        other => panic!("not opened: {other:?}"),
    };
    opened.into_iter().map(id).collect()
}

async fn renew(link: &mut Link, sessions: &[String]) {
    let renewals =
        sessions.chunks(1_000).map(|some| Kind::KeepAlive(v1::KeepAliveAll { sessions: some.to_vec() }));
    for answer in link.all(renewals.collect()).await.unwrap() {
        let renewed =
            matches!(&answer, answer::Kind::KeepAlive(all) if all.ttl_ms.iter().all(|ttl| *ttl > 0));
        assert!(renewed, "a session was lost during the setup: {answer:?}");
    }
}

async fn locks_held(http: &mut Http) -> usize {
    http.get("/v1/status").await.unwrap().ok()["locks_held"].as_u64().unwrap() as usize
}

/// Acquires and releases a lock in a loop. Returns the longest time of a pair.
async fn probe(address: String, stop: Arc<AtomicBool>) -> Duration {
    let mut link = Link::connect(&address).await.unwrap();
    let session = open_sessions(&mut link, 1, Duration::from_secs(600)).await.remove(0);
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let answer =
            link.all(vec![acquire(&session, "probe".to_owned(), String::new())]).await.unwrap().remove(0);
        let answer::Kind::Grant(grant) = answer else { panic!("the probe was refused: {answer:?}") };
        let release = v1::ReleaseRequest {
            session: session.clone(),
            lock: "probe".to_owned(),
            token: grant.token,
            ..Default::default()
        };
        link.all(vec![Kind::Release(release)]).await.unwrap();
        longest = longest.max(began.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    longest
}

/// What a mass expiry took.
#[derive(Debug)]
struct Expired {
    /// From the first free lock, or from the end of the last session's TTL if that is earlier, to the last free lock.
    free_after: Duration,
    longest_request: Duration,
}

/// Lets sessions with a lock each expire at the same moment.
async fn expire(cell: &Cell, count: usize, answers: usize) -> Expired {
    let address = cell.node(1).listen_addr.clone();
    let mut link = Link::connect(&address).await.unwrap();
    let mut sessions = Vec::new();
    while sessions.len() < count {
        let some = open_sessions(&mut link, OPENED_AT_ONCE.min(count - sessions.len()), TTL).await;
        let locks = some.iter().map(|id| acquire(id, format!("orders/{id}"), String::new()));
        link.all(locks.collect()).await.unwrap();
        sessions.extend(some);
        renew(&mut link, &sessions).await;
    }
    let taken = format!("orders/{}", sessions[0]);
    for number in 0..answers {
        let again = |id: &String| acquire(id, taken.clone(), format!("poll-{number}"));
        link.all(sessions.iter().map(again).collect()).await.unwrap();
        renew(&mut link, &sessions).await;
    }
    let mut http = Http::connect(&address).await.unwrap();
    assert_eq!(locks_held(&mut http).await, count);

    let stop = Arc::new(AtomicBool::new(false));
    let probe = tokio::spawn(probe(address, stop.clone()));
    renew(&mut link, &sessions).await;
    let due = Instant::now() + TTL;
    let mut first = None;
    loop {
        // The probe holds one more lock at times.
        let held = locks_held(&mut http).await;
        if held < count && first.is_none() {
            first = Some(Instant::now());
        }
        if held <= 1 {
            break;
        }
        assert!(due.elapsed() < LONG, "{held} locks are still held");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let free_after = first.map_or(Duration::ZERO, |first| first.min(due).elapsed());
    // Their remembered answers are removed afterwards.
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.store(true, Ordering::Relaxed);
    let expired = Expired { free_after, longest_request: probe.await.unwrap() };
    println!("{count} sessions with {answers} answers each: {expired:?}");
    expired
}

fn within(what: &str, took: Duration, limit: Duration) -> Result<(), String> {
    if took <= limit { Ok(()) } else { Err(format!("{what}: {took:?}, at most {limit:?} expected")) }
}

#[tokio::test]
async fn time_to_free_the_locks_of_expired_sessions_grows_linearly() {
    let cell = Cell::start(1).await;
    attempts(ATTEMPTS, async || {
        let few = expire(&cell, FEW, 0).await;
        let many = expire(&cell, MANY, 0).await;
        within("until the last lock is free", many.free_after, FREE_WITHIN)?;
        within("compared with fewer sessions", many.free_after, few.free_after.max(COMPARABLE) * GROWTH_MAX)?;
        within("a request of another client", many.longest_request, ANSWERED_WITHIN)
    })
    .await;
}

#[tokio::test]
async fn remembered_answers_do_not_delay_the_freeing_of_locks() {
    let cell = Cell::start(1).await;
    attempts(ATTEMPTS, async || {
        let polling = expire(&cell, POLLING, ANSWERS).await;
        within("until the last lock is free", polling.free_after, POLLING_FREE_WITHIN)?;
        within("a request of another client", polling.longest_request, ANSWERED_WITHIN)
    })
    .await;
}
