//! Ten times the load that a node can carry: the node refuses new requests with a retry hint, keeps its memory flat, loses
//! no lease of a live client, extends the leases of late clients, accepts releases, and recovers afterwards.

mod outsiders;
mod storm;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockkeeper::{Guard, Keeper};
use lockkeeper_api::v1::{self, answer, operation};
use lockkeeper_lab::compare::Link;

use self::storm::{CONNECTIONS, Storm, busy_acquire};
use crate::support::{LONG, Server};

/// Long enough for every bounded resource to reach its bound within the first third.
const STORM: Duration = Duration::from_secs(18);
/// When a lock is released.
const RELEASE_AFTER: Duration = Duration::from_secs(9);
/// Offered load, as a multiple of the capacity. The test requires ten.
const LOAD_FACTOR: u64 = 20;
/// Clients that hold a lock all the time.
const HOLDERS: u64 = 200;
const TTL: Duration = Duration::from_secs(3);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Memory growth between two thirds of the storm that an allocator may cause.
const DRIFT_KIB_MAX: u64 = 24 * 1_024;
const MEMORY_KIB_MAX: u64 = 448 * 1_024;
/// Late clients that may lose their lease before one must have been extended.
const LATE_CLIENTS_MAX: usize = 6;
/// Maximum duration of an acquire after the storm, on a shared machine.
const RECOVERED: Duration = Duration::from_secs(1);
const RECOVERS_WITHIN: Duration = Duration::from_secs(30);
const RELEASED_LOCK: &str = "given-back-in-the-storm";

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

async fn session_of(link: &mut Link) -> String {
    let open = v1::OpenSessionRequest { ttl_ms: 120_000, owner: "storm".to_owned() };
    match link.all(vec![operation::Kind::OpenSession(open)]).await.unwrap().remove(0) {
        answer::Kind::OpenSession(opened) => opened.session,
        other => panic!("{other:?}"),
    }
}

/// Operations per second of all connections together, when each waits for its answers.
async fn capacity(address: &str, session: &str) -> u64 {
    const AT_ONCE: usize = 1_000;
    let began = Instant::now();
    let client = async || {
        let (mut link, mut done) = (Link::connect(address).await.unwrap(), 0);
        while began.elapsed() < Duration::from_secs(2) {
            done += link.all((0..AT_ONCE).map(|_| busy_acquire(session)).collect()).await.unwrap().len();
        }
        done
    };
    let done: usize = join_all((0..CONNECTIONS).map(|_| client())).await.into_iter().sum();
    (done as f64 / began.elapsed().as_secs_f64()) as u64
}

/// Median and maximum duration of some acquires.
async fn acquire_times(keeper: &Keeper) -> (Duration, Duration) {
    let mut acquire_times = Vec::new();
    for _ in 0..21 {
        let began = Instant::now();
        let guard = keeper.lock("probe").acquire().await.unwrap();
        acquire_times.push(began.elapsed());
        guard.release().await.unwrap();
    }
    acquire_times.sort();
    (acquire_times[acquire_times.len() / 2], acquire_times[acquire_times.len() - 1])
}

/// Holders with one keeper each.
async fn holders(server: &Server) -> Vec<(Keeper, Guard)> {
    let hold = async |number: u64| {
        let keeper = Keeper::builder().ttl(TTL).connect(&server.engine()).await.unwrap();
        let guard = keeper.lock(format!("held-all-the-time/{number}")).acquire().await.unwrap();
        (keeper, guard)
    };
    join_all((0..HOLDERS).map(hold)).await
}

/// Memory samples during the storm.
#[derive(Default)]
struct Memory {
    seen: Vec<(Duration, u64)>,
}

impl Memory {
    /// The maximum in this third of the storm.
    fn maximum(&self, third: u32) -> u64 {
        let within = |at: &Duration| *at >= STORM / 3 * third && *at < STORM / 3 * (third + 1);
        self.seen
            .iter()
            .filter(|(at, _)| within(at))
            .map(|(_, kib)| *kib)
            .max()
            .expect("samples in this third")
    }
}

#[test]
fn tenfold_overload_loses_no_lease_and_leaves_no_trace() {
    // In memory if possible: this test is about load, not about a slow shared disk.
    let memory = std::path::Path::new("/dev/shm");
    let server = if memory.exists() { Server::start_in(memory) } else { Server::start() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(tokio::task::LocalSet::new().run_until(run_storm(&server)));
}

async fn run_storm(server: &Server) {
    let keeper = Keeper::builder().ttl(TTL).connect(&server.engine()).await.unwrap();
    let held = keeper.lock(RELEASED_LOCK).acquire().await.unwrap();
    let holders = holders(server).await;
    let mut link = Link::connect(&server.address).await.unwrap();
    let session = session_of(&mut link).await;
    link.all(vec![busy_acquire(&session)]).await.unwrap();
    let (before, _) = acquire_times(&keeper).await;
    let capacity = capacity(&server.address, &session).await;

    let (storm, threads) = Storm::start(&server.address, &session, LOAD_FACTOR * capacity);
    let began = Instant::now();
    let (address, outsider) = (server.address.clone(), session.clone());
    let outsiders = tokio::task::spawn_local(async move {
        outsiders::refused_over_http(&address, &outsider).await;
        outsiders::refused_over_grpc(&address, &outsider).await;
        let mut late = 0;
        while !outsiders::renewed_too_late(&address).await {
            late += 1;
            assert!(late < LATE_CLIENTS_MAX, "no late client kept its session: leases are not extended");
        }
        began.elapsed()
    });
    let (mut memory, mut held, mut release) = (Memory::default(), Some(held), None);
    while began.elapsed() < STORM {
        tokio::time::sleep(SAMPLE_INTERVAL).await;
        for (_, guard) in &holders {
            guard.check().expect("the lease of a live client");
        }
        memory.seen.push((began.elapsed(), resident_kib(server.pid())));
        // The machine may have been busier while the capacity was measured.
        let carried = storm.busy.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
        storm.pace(LOAD_FACTOR * capacity.max(carried as u64));
        if began.elapsed() > RELEASE_AFTER
            && let Some(held) = held.take()
        {
            release = Some(tokio::task::spawn_local(async move {
                let began = Instant::now();
                tokio::time::timeout(LONG, held.release()).await.map(|result| (result, began.elapsed()))
            }));
        }
    }
    let (duration, offered) = (began.elapsed(), storm.offered());
    let outsiders_done = outsiders.is_finished();
    let (result, took) = release.unwrap().await.unwrap().expect("a release is answered in the storm");
    storm.stop();
    let calm = Instant::now();
    // Clients are served again at once.
    let (_, slowest) = loop {
        let seen = acquire_times(&keeper).await;
        if seen.1 <= RECOVERED || calm.elapsed() > RECOVERS_WITHIN {
            break seen;
        }
    };
    let recovered = calm.elapsed();
    for thread in threads {
        thread.join().unwrap();
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let per_second = |count: u64| (count as f64 / duration.as_secs_f64()) as u64;
    let carried = per_second(count(&storm.busy));
    println!(
        "carries {capacity}/s; offered {}/s for {duration:?}, of which {}/s went into the sockets; {carried}/s carried, \
         {}/s refused; memory at most {} / {} / {} KiB in each third; a release took {took:?}; recovered after \
         {recovered:?}",
        per_second(offered),
        per_second(count(&storm.sent)),
        per_second(count(&storm.limited)),
        memory.maximum(0),
        memory.maximum(1),
        memory.maximum(2),
    );
    let finished_at = outsiders.await.expect("HTTP, gRPC and late clients");
    println!("HTTP, gRPC and late clients were done after {finished_at:?}");
    assert!(
        per_second(offered) >= 10 * capacity.max(carried),
        "{}/s were offered, but {capacity}/s, and {carried}/s in the storm, can be carried",
        per_second(offered)
    );
    assert!(carried > 0, "no acquire was carried out");
    assert!(count(&storm.limited) > 0, "no acquire was refused");
    assert_eq!((count(&storm.without_hint), count(&storm.other)), (0, 0));
    assert!(outsiders_done, "HTTP, gRPC and late clients were answered only after the storm");
    assert!(memory.maximum(2) <= memory.maximum(1) + DRIFT_KIB_MAX, "memory grows: {:?}", memory.seen);
    assert!(memory.maximum(2) <= MEMORY_KIB_MAX, "memory is not bounded: {:?}", memory.seen);
    // The release waits behind everything queued before it. A caller with a shorter time limit gets `Unknown`, and the
    // library repeats the release.
    assert!(matches!(result, Ok(()) | Err(lockkeeper::Error::Unknown(_))), "{result:?}");
    let began = Instant::now();
    while !keeper.who(RELEASED_LOCK).await.unwrap().holders.is_empty() {
        assert!(began.elapsed() < LONG, "the released lock is still held");
    }
    assert!(slowest <= RECOVERED, "an acquire still takes {slowest:?} {recovered:?} after the storm");
    let (after, _) = acquire_times(&keeper).await;
    println!("median of an acquire: {before:?} before, {after:?} after");
    for (_, guard) in holders {
        guard.check().expect("the lease of a live client");
        guard.release().await.expect("it was held all the time");
    }
}
