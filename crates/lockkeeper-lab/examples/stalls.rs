//! Latency of other clients while a cell processes a burst of work.
//!
//! ```text
//! cargo build --release -p lockkeeper-cli
//! cargo run --release -p lockkeeper-lab --example stalls -- target/release/lockkeeper expiry 200000
//! cargo run --release -p lockkeeper-lab --example stalls -- target/release/lockkeeper polling 5000
//! cargo run --release -p lockkeeper-lab --example stalls -- target/release/lockkeeper frame
//! ```
//!
//! - `expiry N`: the sessions of N clients that hold a lock each expire at the same moment.
//! - `polling N`: the same, and each has requested a lock of another client 256 times in vain.
//! - `frame`: on three nodes, 250 scopes share a lock, 9,700 requests wait for it and 9,700 for another one; then a single
//!   frame requests the other lock for each scope.
//!
//! Meanwhile another client acquires and releases a lock in a loop.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_api::v1::{self, answer, operation};
use lockkeeper_lab::compare::Link;
use lockkeeper_testkit::Servers;
use lockkeeper_testkit::cell::Cell;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Long enough for the setup.
const TTL: Duration = Duration::from_secs(60);
/// Remembered answers of each session.
const ANSWERS: usize = 256;
const GIVE_UP_AFTER: Duration = Duration::from_secs(120);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [binary, "expiry", count] => expiry(Path::new(binary), count.parse()?, 0).await,
        [binary, "polling", count] => expiry(Path::new(binary), count.parse()?, ANSWERS).await,
        [binary, "frame"] => frame(Path::new(binary)).await,
        _ => Err("usage: stalls BINARY (expiry N | polling N | frame)".into()),
    }
}

fn open(owner: impl Into<String>, ttl: Duration) -> operation::Kind {
    operation::Kind::OpenSession(v1::OpenSessionRequest {
        ttl_ms: ttl.as_millis() as u64,
        owner: owner.into(),
    })
}

fn request(session: &str, lock: impl Into<String>) -> v1::AcquireRequest {
    v1::AcquireRequest { session: session.to_owned(), lock: lock.into(), ..Default::default() }
}

/// Opens sessions.
async fn sessions(link: &mut Link, count: usize, ttl: Duration) -> Result<Vec<String>, Failed> {
    let opened = link.all((0..count).map(|number| open(format!("client-{number}"), ttl)).collect()).await?;
    let id = |answer| match answer {
        answer::Kind::OpenSession(opened) => Ok(opened.session),
        other => Err(format!("not opened: {other:?}").into()),
    };
    opened.into_iter().map(id).collect()
}

async fn status(link: &mut Link) -> Result<v1::StatusResponse, Failed> {
    match link.all(vec![operation::Kind::Status(v1::StatusRequest {})]).await?.remove(0) {
        answer::Kind::Status(status) => Ok(status),
        other => Err(format!("no status: {other:?}").into()),
    }
}

/// Acquires and releases a lock in a loop on a separate thread.
struct Probe {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Result<Vec<(Instant, Duration)>, String>>,
}

impl Probe {
    fn start(address: SocketAddr) -> Probe {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| error.to_string())?;
            runtime.block_on(probe(address, &stopped)).map_err(|error| error.to_string())
        });
        Probe { stop, thread }
    }

    /// Durations of the pairs that ended after this time, sorted.
    fn since(self, began: Instant) -> Result<Vec<Duration>, Failed> {
        self.stop.store(true, Ordering::Relaxed);
        let pairs = self.thread.join().map_err(|_| "the probe has panicked")??;
        let during = pairs.into_iter().filter(|(start, took)| *start + *took >= began);
        let mut took: Vec<Duration> = during.map(|(_, took)| took).collect();
        took.sort_unstable();
        Ok(took)
    }
}

async fn probe(address: SocketAddr, stop: &AtomicBool) -> Result<Vec<(Instant, Duration)>, Failed> {
    let mut link = Link::connect(&address.to_string()).await?;
    let session = sessions(&mut link, 1, Duration::from_secs(3_600)).await?.remove(0);
    let mut pairs = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let acquire = operation::Kind::Acquire(request(&session, "probe"));
        let token = match link.all(vec![acquire]).await?.remove(0) {
            answer::Kind::Grant(grant) => grant.token,
            other => return Err(format!("the probe was not granted its lock: {other:?}").into()),
        };
        let lock = "probe".to_owned();
        let release = v1::ReleaseRequest { session: session.clone(), lock, token, ..Default::default() };
        link.all(vec![operation::Kind::Release(release)]).await?;
        pairs.push((began, began.elapsed()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(pairs)
}

fn print(what: &str, took: &[Duration]) {
    let at = |share: f64| took.get(((took.len() as f64 * share) as usize).min(took.len() - 1));
    println!(
        "{what}: {} pairs of another client, p50 {:.1?}, p99 {:.1?}, longest {:.1?}",
        took.len(),
        at(0.5).copied().unwrap_or_default(),
        at(0.99).copied().unwrap_or_default(),
        took.last().copied().unwrap_or_default()
    );
}

async fn expiry(binary: &Path, count: usize, answers: usize) -> Result<(), Failed> {
    let cell = Cell::start(binary, 1)?;
    let address = cell.addresses()[0];
    let mut link = Link::connect(&address.to_string()).await?;
    let ids = sessions(&mut link, count, TTL).await?;
    let acquire =
        |(number, id): (usize, &String)| operation::Kind::Acquire(request(id, format!("orders/{number:07}")));
    link.all(ids.iter().enumerate().map(acquire).collect()).await?;
    for number in 0..answers {
        let again = |id: &String| {
            let poll =
                v1::AcquireRequest { request: format!("poll-{number}"), ..request(id, "orders/0000000") };
            operation::Kind::Acquire(poll)
        };
        link.all(ids.iter().map(again).collect()).await?;
        renew(&mut link, &ids).await?;
    }
    let held = status(&mut link).await?.locks_held;
    if held != count as u64 {
        return Err(format!("{held} of {count} locks are held").into());
    }
    let probe = Probe::start(address);
    let renewing = Instant::now();
    renew(&mut link, &ids).await?;
    let renewed = Instant::now();
    println!(
        "{count} sessions hold a lock each, with {answers} answers each; renewed within {:.2?}",
        renewed - renewing
    );
    tokio::time::sleep((TTL - Duration::from_millis(500)).saturating_sub(renewing.elapsed())).await;
    // The client disconnects, so the sessions are no longer renewed.
    drop(link);
    let mut watching = Link::connect(&address.to_string()).await?;
    let began = Instant::now();
    let mut first = None;
    loop {
        // The probe may hold one lock.
        let held = status(&mut watching).await?.locks_held;
        if held + 1 < count as u64 && first.is_none() {
            first = Some(Instant::now());
        }
        if held <= 1 {
            break;
        }
        if began.elapsed() > GIVE_UP_AFTER {
            return Err(format!("{held} locks are still held").into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let free = Instant::now();
    println!(
        "the last lock is free {:.2?} after the last session was due, {:.2?} after the first lock was free",
        free.saturating_duration_since(renewed + TTL),
        first.map_or(Duration::ZERO, |first| free - first),
    );
    // The remembered answers of the sessions are removed afterwards.
    tokio::time::sleep(Duration::from_secs(2)).await;
    print("meanwhile and for 2 s more", &probe.since(began)?);
    Ok(())
}

async fn renew(link: &mut Link, ids: &[String]) -> Result<(), Failed> {
    // Far fewer than fit into the largest frame that a node accepts.
    for some in ids.chunks(20_000) {
        let renewals = some
            .chunks(1_000)
            .map(|some| operation::Kind::KeepAlive(v1::KeepAliveAll { sessions: some.to_vec() }));
        for answer in link.all(renewals.collect()).await? {
            match answer {
                answer::Kind::KeepAlive(renewed) if renewed.ttl_ms.iter().all(|ttl| *ttl > 0) => {}
                other => return Err(format!("a session is lost: {other:?}").into()),
            }
        }
    }
    Ok(())
}

/// The address of the leader, and its term.
async fn leader(addresses: &[SocketAddr]) -> Result<(SocketAddr, u64), Failed> {
    let began = Instant::now();
    while began.elapsed() < GIVE_UP_AFTER {
        for address in addresses {
            let status = status(&mut Link::connect(&address.to_string()).await?).await?;
            if status.leader == status.node_id {
                return Ok((*address, status.term));
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err("no node leads".into())
}

async fn frame(binary: &Path) -> Result<(), Failed> {
    const SCOPES: usize = 250;
    const WAITERS: usize = 9_700;
    let cell = Cell::start(binary, 3)?;
    let (address, term) = leader(&cell.addresses()).await?;
    let mut links = Vec::new();
    for _ in 0..3 {
        links.push(Link::connect(&address.to_string()).await?);
    }
    let mut asking = Link::connect(&address.to_string()).await?;
    let ids = sessions(&mut asking, 3, Duration::from_secs(3_600)).await?;
    let scoped = |number, lock: &str| v1::AcquireRequest {
        scope: format!("scope-{number}"),
        ..request(&ids[0], lock)
    };
    let share = |number| {
        let mode = Some(v1::Mode::Shared.into());
        operation::Kind::Acquire(v1::AcquireRequest { mode, ..scoped(number, "L1") })
    };
    asking.all((0..SCOPES).map(share).collect()).await?;
    asking.all(vec![operation::Kind::Acquire(request(&ids[1], "L2"))]).await?;
    // On a stream a waiting request needs an id.
    let waits = |number, request| {
        let id = format!("wait-{number}");
        operation::Kind::Acquire(v1::AcquireRequest { wait_forever: true, request: id, ..request })
    };
    for (link, lock) in links.iter_mut().zip(["L1", "L2"]) {
        let id = |number| format!("{lock}-{number}");
        link.send((0..WAITERS).map(|number| waits(id(number), request(&ids[2], lock))).collect()).await?;
    }
    let all_wait = 2 * WAITERS as u64;
    while status(&mut asking).await?.waiting < all_wait {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let probe = Probe::start(address);
    tokio::time::sleep(Duration::from_millis(500)).await;
    println!("{SCOPES} scopes share L1, {WAITERS} requests wait for it and {WAITERS} for L2");
    let began = Instant::now();
    let wanted = (0..SCOPES).map(|number| waits(format!("scope-{number}"), scoped(number, "L2")));
    links[2].send(wanted.collect()).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (_, term_after) = leader(&cell.addresses()).await?;
    print("5 s from the frame on", &probe.since(began)?);
    println!("term {term} before, {term_after} after");
    if term != term_after {
        return Err("the leadership was lost".into());
    }
    Ok(())
}
