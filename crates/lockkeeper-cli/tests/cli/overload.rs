//! Ten times the load that a node can carry: it refuses what is new and says when to come back, keeps its memory flat,
//! loses no lease of a live client, takes what is given back, and is itself again afterwards.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use futures_util::future::join_all;
use lockkeeper::Keeper;
use lockkeeper_lab::bench::Link;
use lockkeeper_proto::frame::{self, GREETING};
use lockkeeper_proto::v1::{self, answer, operation};

use crate::support::{LONG, Server};

const CONNECTIONS: u64 = 8;
const PER_FRAME: u64 = 100;
const STORM: Duration = Duration::from_secs(12);
/// When something is given back.
const MIDDLE: Duration = Duration::from_secs(6);
/// A run of 75 s was at 372,000 KiB after 30 s and at 373,000 KiB at the end; at the pace of its first 30 s it would have
/// been at twice that.
const MEMORY_KIB_MAX: u64 = 640 * 1_024;
const TTL: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const CROWDED: &str = "crowded";
const GIVEN_BACK: &str = "given-back-in-the-storm";

/// An acquire that is answered at once through the log and leaves nothing behind: the lock is held.
fn ask(session: &str) -> operation::Kind {
    operation::Kind::Acquire(v1::AcquireRequest {
        session: session.to_owned(),
        lock: CROWDED.to_owned(),
        ..Default::default()
    })
}

#[derive(Default)]
struct Storm {
    stop: AtomicBool,
    sent: AtomicU64,
    busy: AtomicU64,
    limited: AtomicU64,
    /// `limit` without a time to come back after, or with one that makes no sense.
    without_hint: AtomicU64,
    other: AtomicU64,
}

impl Storm {
    /// One client that sends at its own pace, whatever the answers are, and one that reads them.
    fn connection(self: &Arc<Storm>, address: &str, session: &str, every: Duration) -> [JoinHandle<()>; 2] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(GREETING).unwrap();
        stream.read_exact(&mut [0; GREETING.len()]).unwrap();
        let operations = (1..=PER_FRAME).map(|id| v1::Operation { id, kind: Some(ask(session)) }).collect();
        let mut bytes = BytesMut::new();
        frame::encode(&v1::ClientFrame { operations }, &mut bytes);
        let (reader, storm) = (stream.try_clone().unwrap(), Arc::clone(self));
        let writes = std::thread::spawn(move || {
            let mut due = Instant::now();
            while !storm.stop.load(Ordering::Relaxed) && stream.write_all(&bytes).is_ok() {
                storm.sent.fetch_add(PER_FRAME, Ordering::Relaxed);
                due += every;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
        let storm = Arc::clone(self);
        [writes, std::thread::spawn(move || storm.read(reader))]
    }

    fn read(&self, mut stream: TcpStream) {
        let (mut buffer, mut bytes) = (BytesMut::new(), vec![0; 1 << 16]);
        loop {
            while let Some(frame) = frame::decode::<v1::ServerFrame>(&mut buffer, 64 << 20).unwrap() {
                for answer in frame.answers {
                    self.count(answer.kind);
                }
            }
            match stream.read(&mut bytes) {
                Ok(count) if count > 0 => buffer.extend_from_slice(&bytes[..count]),
                _ => return,
            }
        }
    }

    fn count(&self, kind: Option<answer::Kind>) {
        let counter = match kind {
            Some(answer::Kind::Error(error)) => match error.code.as_str() {
                "busy" => &self.busy,
                "limit" if (200..=5_000).contains(&error.retry_after_ms) => &self.limited,
                "limit" => &self.without_hint,
                _ => &self.other,
            },
            _ => &self.other,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

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

/// Operations a second that all connections together get carried out, when each waits for its answers.
async fn capacity(address: &str, session: &str) -> u64 {
    const AT_ONCE: usize = 1_000;
    let began = Instant::now();
    let client = async || {
        let (mut link, mut done) = (Link::connect(address).await.unwrap(), 0);
        while began.elapsed() < Duration::from_secs(1) {
            done += link.all((0..AT_ONCE).map(|_| ask(session)).collect()).await.unwrap().len();
        }
        done
    };
    let done: usize = join_all((0..CONNECTIONS).map(|_| client())).await.into_iter().sum();
    (done as f64 / began.elapsed().as_secs_f64()) as u64
}

/// What half of some acquires took at most.
async fn median(keeper: &Keeper) -> Duration {
    let mut times = Vec::new();
    for _ in 0..21 {
        let began = Instant::now();
        let guard = keeper.lock("probe").acquire().await.unwrap();
        times.push(began.elapsed());
        guard.release().await.unwrap();
    }
    times.sort();
    times[times.len() / 2]
}

#[test]
fn ten_times_the_load_costs_nobody_a_lease_and_leaves_nothing_behind() {
    // Not on the disk that others use at the same time: this is about load, not about a slow disk.
    let memory = std::path::Path::new("/dev/shm");
    let server = if memory.exists() { Server::start_in(memory) } else { Server::start() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(weather(&server));
}

async fn weather(server: &Server) {
    let keeper = Keeper::connect(&server.engine()).await.unwrap();
    let held = keeper.lock("held-all-the-time").ttl(TTL).acquire().await.unwrap();
    let given = keeper.lock(GIVEN_BACK).ttl(TTL).acquire().await.unwrap();
    let mut link = Link::connect(&server.address).await.unwrap();
    let session = session_of(&mut link).await;
    link.all(vec![ask(&session)]).await.unwrap();
    let before = median(&keeper).await;
    let capacity = capacity(&server.address, &session).await;

    let storm = Arc::new(Storm::default());
    let every = Duration::from_secs_f64((CONNECTIONS * PER_FRAME) as f64 / (10 * capacity) as f64);
    let threads: Vec<JoinHandle<()>> =
        (0..CONNECTIONS).flat_map(|_| storm.connection(&server.address, &session, every)).collect();
    let (began, pid) = (Instant::now(), server.pid());
    let (mut memory, mut given) = (0, Some(given));
    let mut release = None;
    while began.elapsed() < STORM {
        tokio::time::sleep(LOOK_EVERY).await;
        held.check().expect("the lease of a live client");
        memory = resident_kib(pid).max(memory);
        if began.elapsed() > MIDDLE
            && let Some(given) = given.take()
        {
            release = Some(tokio::spawn(async move {
                let began = Instant::now();
                tokio::time::timeout(LONG, given.release()).await.map(|result| (result, began.elapsed()))
            }));
        }
    }
    storm.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (result, took) = release.unwrap().await.unwrap().expect("a release is answered in the storm");
    println!(
        "carries {capacity}/s; sent {} in {STORM:?}: {} busy, {} limit; memory up to {memory} KiB; \
         release took {took:?}",
        count(&storm.sent),
        count(&storm.busy),
        count(&storm.limited)
    );
    // It waits behind all that was queued before it. A caller that does not wait so long learns that it is repeated.
    assert!(matches!(result, Ok(()) | Err(lockkeeper::Error::Unknown(_))), "{result:?}");
    let began = Instant::now();
    while !keeper.who(GIVEN_BACK).await.unwrap().holders.is_empty() {
        assert!(began.elapsed() < LONG, "what is given back is not taken");
    }
    assert!(count(&storm.busy) > 0, "what can be carried is carried");
    assert!(count(&storm.limited) > 0, "what cannot is refused");
    assert_eq!((count(&storm.without_hint), count(&storm.other)), (0, 0));
    assert!(memory <= MEMORY_KIB_MAX, "memory is not bounded: {memory} KiB");

    let began = Instant::now();
    let after = loop {
        let after = median(&keeper).await;
        if after <= 3 * before + Duration::from_millis(20) || began.elapsed() > LONG {
            break after;
        }
    };
    println!("median of an acquire: {before:?} before, {after:?} after");
    assert!(after <= 3 * before + Duration::from_millis(20), "{before:?} before, {after:?} after");
    held.check().expect("the lease of a live client");
    held.release().await.expect("it was held all the time");
}
