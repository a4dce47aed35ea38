//! Many sessions expire at the same moment: their locks are free soon, and other clients hardly notice.
//!
//! `scripts/nightly expiry` measures a release build with 200,000 sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_api::v1::{self, answer, operation::Kind};
use lockkeeper_lab::compare::Link;
use tokio::task::JoinSet;

use crate::harness::cell::Cell;
use crate::harness::http::Http;
use crate::harness::node::has_other_binary;
use crate::harness::{LONG, attempts, until};

/// Variable with the number of sessions for a release build, which LOCKKEEPER_NODE_BINARY names.
const EXPIRING: &str = "LOCKKEEPER_EXPIRING";
/// The number of sessions is multiplied by this to compare the times.
const TIMES: usize = 5;
/// Sessions that are opened at once.
const OPENED_AT_ONCE: usize = 3_000;
/// Renewals in one frame, of 1,000 sessions each.
const RENEWALS_AT_ONCE: usize = 50;
/// Each session of the polling clients has requested another client's lock in vain this often, and each request has a
/// remembered answer.
const ANSWERS: usize = 256;
/// Shorter times are not compared.
const COMPARABLE: Duration = Duration::from_millis(150);
/// More than the lock of the probe needs.
const PROBE_BYTES: f64 = 10_000.0;
const ATTEMPTS: usize = 3;

/// Sizes and limits.
#[derive(Debug, Clone, Copy)]
struct Scale {
    /// Longer than any step of the setup.
    ttl: Duration,
    /// Sessions with a lock each.
    sessions: usize,
    /// Sessions with a lock and [`ANSWERS`] each.
    polling: usize,
    free_within: Duration,
    polling_free_within: Duration,
    /// The longest delay of another client's request: on one node and on three, which share the machine.
    answered_within: Duration,
    answered_by_three_within: Duration,
    /// The time may grow in proportion to the number of sessions, here [`TIMES`]. The square is 25 times.
    growth_max: u32,
}

/// For the debug build on a busy machine.
const DEBUG: Scale = Scale {
    ttl: Duration::from_secs(8),
    sessions: 30_000,
    polling: 200,
    free_within: Duration::from_secs(5),
    polling_free_within: Duration::from_secs(1),
    answered_within: Duration::from_millis(250),
    answered_by_three_within: Duration::from_millis(1_000),
    growth_max: 8,
};

/// What a release build must reach.
const RELEASE: Scale = Scale {
    ttl: Duration::from_secs(30),
    sessions: 200_000,
    polling: 5_000,
    free_within: Duration::from_secs(3),
    polling_free_within: Duration::from_secs(3),
    answered_within: Duration::from_millis(50),
    answered_by_three_within: Duration::from_millis(50),
    growth_max: 8,
};

fn scale() -> Scale {
    let Ok(sessions) = std::env::var(EXPIRING) else { return DEBUG };
    assert!(has_other_binary(), "{EXPIRING} needs a release build: set LOCKKEEPER_NODE_BINARY to it");
    Scale { sessions: sessions.parse().expect("LOCKKEEPER_EXPIRING is a number"), ..RELEASE }
}

fn acquire(session: &str, lock: String, request: String) -> Kind {
    Kind::Acquire(v1::AcquireRequest { session: session.to_owned(), lock, request, ..Default::default() })
}

/// Executes operations. Fails if the connection ends, as when another node leads.
async fn all(link: &mut Link, operations: Vec<Kind>) -> Result<Vec<answer::Kind>, String> {
    link.all(operations).await.map_err(|error| error.to_string())
}

async fn open_sessions(link: &mut Link, count: usize, ttl: Duration) -> Result<Vec<String>, String> {
    let ttl_ms = ttl.as_millis() as u64;
    let open = || Kind::OpenSession(v1::OpenSessionRequest { ttl_ms, ..Default::default() });
    let opened = all(link, (0..count).map(|_| open()).collect()).await?;
    let id = |answer| match answer {
        answer::Kind::OpenSession(opened) => Ok(opened.session),
        other => Err(format!("not opened: {other:?}")),
    };
    opened.into_iter().map(id).collect()
}

async fn renew(link: &mut Link, sessions: &[String]) -> Result<(), String> {
    let renewals: Vec<_> = sessions
        .chunks(1_000)
        .map(|some| Kind::KeepAlive(v1::KeepAliveAll { sessions: some.to_vec() }))
        .collect();
    for some in renewals.chunks(RENEWALS_AT_ONCE) {
        for answer in all(link, some.to_vec()).await? {
            let renewed =
                matches!(&answer, answer::Kind::KeepAlive(all) if all.ttl_ms.iter().all(|ttl| *ttl > 0));
            if !renewed {
                return Err(format!("a session was lost during the setup: {answer:?}"));
            }
        }
    }
    Ok(())
}

async fn locks_held(http: &mut Http) -> Result<usize, String> {
    let status = http.get("/v1/status").await.map_err(|error| error.to_string())?.ok();
    Ok(status["locks_held"].as_u64().expect("a number") as usize)
}

/// Acquires and releases a lock in a loop. Returns the longest time of a request.
async fn probe(address: String, stop: Arc<AtomicBool>) -> Result<Duration, String> {
    let mut link = Link::connect(&address).await.map_err(|error| error.to_string())?;
    let session = open_sessions(&mut link, 1, Duration::from_secs(600)).await?.remove(0);
    let lock = format!("probe/{session}");
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let acquire = acquire(&session, lock.clone(), String::new());
        let answer = all(&mut link, vec![acquire]).await?.remove(0);
        longest = longest.max(began.elapsed());
        let answer::Kind::Grant(grant) = answer else {
            return Err(format!("the probe was refused: {answer:?}"));
        };
        let release = v1::ReleaseRequest {
            session: session.clone(),
            lock: lock.clone(),
            token: grant.token,
            ..Default::default()
        };
        let began = Instant::now();
        let answer = all(&mut link, vec![Kind::Release(release)]).await?.remove(0);
        longest = longest.max(began.elapsed());
        if let answer::Kind::Error(error) = answer {
            return Err(format!("the release of the probe was refused: {error:?}"));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(longest)
}

/// What a mass expiry took.
#[derive(Debug)]
struct Expired {
    /// From the first free lock, or from the end of the last session's TTL if that is earlier, to the last free lock.
    free_after: Duration,
    longest_request: Duration,
}

/// Opens sessions with a lock and remembered answers each, and keeps them alive meanwhile.
async fn prepare(
    link: &mut Link,
    ttl: Duration,
    count: usize,
    answers: usize,
) -> Result<Vec<String>, String> {
    let (mut sessions, mut renewed) = (Vec::new(), Instant::now());
    while sessions.len() < count {
        let some = open_sessions(link, OPENED_AT_ONCE.min(count - sessions.len()), ttl).await?;
        let locks = some.iter().map(|id| acquire(id, format!("orders/{id}"), String::new()));
        all(link, locks.collect()).await?;
        sessions.extend(some);
        if renewed.elapsed() > ttl / 4 {
            renewed = Instant::now();
            renew(link, &sessions).await?;
        }
    }
    let taken = format!("orders/{}", sessions[0]);
    for number in 0..answers {
        let again = |id: &String| acquire(id, taken.clone(), format!("poll-{number}"));
        all(link, sessions.iter().map(again).collect()).await?;
        if renewed.elapsed() > ttl / 4 {
            renewed = Instant::now();
            renew(link, &sessions).await?;
        }
    }
    Ok(sessions)
}

/// Waits until the remembered answers of the ended sessions are removed, which happens after their locks are free.
async fn until_forgotten(cell: &Cell, leader: u64) {
    let mut before = f64::INFINITY;
    until("the state to shrink no further", async || {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let now = cell.metric(leader, "lockkeeper_state_bytes").await;
        let shrinks = now + PROBE_BYTES < std::mem::replace(&mut before, now);
        (!shrinks).then_some(())
    })
    .await;
}

/// Lets sessions with a lock each expire at the same moment.
async fn expire(cell: &Cell, ttl: Duration, count: usize, answers: usize) -> Result<Expired, String> {
    let leader = cell.until_agreed().await;
    let address = cell.node(leader).listen_addr.clone();
    until("the locks of an earlier attempt to be free", async || {
        (cell.node(leader).status().await?["locks_held"] == 0).then_some(())
    })
    .await;
    let mut link = Link::connect(&address).await.map_err(|error| error.to_string())?;
    let began = Instant::now();
    let sessions = prepare(&mut link, ttl, count, answers).await?;
    let mut http = Http::connect(&address).await.map_err(|error| error.to_string())?;
    let held = locks_held(&mut http).await?;
    if held != count {
        return Err(format!("{held} locks are held instead of {count} after {:?}", began.elapsed()));
    }

    let stop = Arc::new(AtomicBool::new(false));
    // Ends with this function, even if that fails.
    let mut probes = JoinSet::new();
    probes.spawn(probe(address, stop.clone()));
    renew(&mut link, &sessions).await?;
    let due = Instant::now() + ttl;
    let mut first = None;
    loop {
        // The probe holds one more lock at times.
        let held = locks_held(&mut http).await?;
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
    until_forgotten(cell, leader).await;
    stop.store(true, Ordering::Relaxed);
    let longest_request = probes.join_next().await.expect("a probe").expect("the probe does not panic")?;
    let expired = Expired { free_after, longest_request };
    println!("{count} sessions with {answers} answers each on {} nodes: {expired:?}", cell.nodes.len());
    Ok(expired)
}

fn within(what: &str, took: Duration, limit: Duration) -> Result<(), String> {
    if took <= limit { Ok(()) } else { Err(format!("{what}: {took:?}, at most {limit:?} expected")) }
}

impl Scale {
    /// Lets the larger number of sessions expire.
    async fn expire_all(&self, cell: &Cell) -> Result<Expired, String> {
        let expired = expire(cell, self.ttl, self.sessions, 0).await?;
        within("until the last lock is free", expired.free_after, self.free_within)?;
        let alone = cell.nodes.len() == 1;
        let limit = if alone { self.answered_within } else { self.answered_by_three_within };
        within("a request of another client", expired.longest_request, limit)?;
        Ok(expired)
    }
}

#[tokio::test]
async fn time_to_free_the_locks_of_expired_sessions_grows_linearly() {
    let (scale, cell) = (scale(), Cell::start(1).await);
    attempts(ATTEMPTS, async || {
        let few = expire(&cell, scale.ttl, scale.sessions / TIMES, 0).await?;
        let many = scale.expire_all(&cell).await?;
        let growth_max = few.free_after.max(COMPARABLE) * scale.growth_max;
        within("compared with fewer sessions", many.free_after, growth_max)
    })
    .await;
}

#[tokio::test]
async fn locks_of_expired_sessions_are_free_soon_on_three_nodes() {
    let (scale, cell) = (scale(), Cell::start(3).await);
    attempts(ATTEMPTS, async || scale.expire_all(&cell).await.map(drop)).await;
}

#[tokio::test]
async fn remembered_answers_do_not_delay_the_freeing_of_locks() {
    let (scale, cell) = (scale(), Cell::start(1).await);
    attempts(ATTEMPTS, async || {
        let polling = expire(&cell, scale.ttl, scale.polling, ANSWERS).await?;
        within("until the last lock is free", polling.free_after, scale.polling_free_within)?;
        within("a request of another client", polling.longest_request, scale.answered_within)
    })
    .await;
}
