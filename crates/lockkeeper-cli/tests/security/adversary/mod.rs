//! An adversary with ordinary rights runs every operation in its most expensive form, on all protocols at once, against a
//! node whose memory is capped. The node stays under its cap, and keep-alives of other clients stay fast.
//!
//! LOCKKEEPER_ADVERSARY_SECONDS=60 runs it in full. LOCKKEEPER_NODE_BINARY selects another build of the node.

mod attacks;
mod operations;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use lockkeeper_api::v1;
use lockkeeper_api::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_api::v1::operation::Kind;
use lockkeeper_net::frame::{self, GREETING};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::Request;

use self::attacks::Adversary;
use self::operations::{CROWDED, VALUE, acquire, long};
use crate::connections::TestNode;
use crate::fixture::Caller;
use crate::harness::LONG;
use crate::harness::node::has_other_binary;

/// Default duration of the attack.
const ATTACK: Duration = Duration::from_secs(15);
/// The node's cap on resident memory, far below what a single unbounded request used to take.
const CAP_MIB: u64 = 768;
/// The limit that the kernel enforces. It counts reserved memory, which the allocator takes in pieces of a gibibyte.
const RESERVED_MAX_MIB: u64 = 4 * CAP_MIB;
/// Time limit for a keep-alive of another client.
const KEEP_ALIVE_WITHIN: Duration = Duration::from_millis(500);
/// The same for a debug build on a shared machine.
const KEEP_ALIVE_UNOPTIMISED_WITHIN: Duration = Duration::from_millis(3_000);
/// Pause between two keep-alives of one client.
const PAUSE: Duration = Duration::from_millis(10);

// State before the attack: long names, long queues, many sessions.
const LOCKS: u64 = 2_000;
const WAITERS: u64 = 1_000;
const SESSIONS: u64 = 5_000;

fn attack_time() -> Duration {
    let seconds = std::env::var("LOCKKEEPER_ADVERSARY_SECONDS").ok().and_then(|text| text.parse().ok());
    seconds.map_or(ATTACK, Duration::from_secs)
}

/// A frame connection that waits for all answers of a call.
struct Frames {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Frames {
    async fn connect(caller: &Caller) -> Frames {
        let mut stream = TcpStream::connect(&caller.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(GREETING).await.unwrap();
        stream.read_exact(&mut [0; GREETING.len()]).await.unwrap();
        let mut frames = Frames { stream, buffer: BytesMut::new() };
        let token = caller.token.clone().unwrap();
        frames.call(vec![Kind::Authenticate(v1::AuthenticateRequest { token })]).await;
        frames
    }

    /// Sends operations in one frame and waits for all answers.
    async fn call(&mut self, kinds: Vec<Kind>) -> Vec<v1::Answer> {
        let count = kinds.len();
        let operations = kinds.into_iter().zip(1..).map(|(kind, id)| v1::Operation { id, kind: Some(kind) });
        let mut bytes = BytesMut::new();
        frame::encode(&v1::ClientFrame { operations: operations.collect() }, &mut bytes);
        self.stream.write_all(&bytes).await.unwrap();
        let mut answers = Vec::new();
        while answers.len() < count {
            match frame::decode::<v1::ServerFrame>(&mut self.buffer, 64 << 20).unwrap() {
                Some(frame) => answers.extend(frame.answers),
                None => {
                    let read = tokio::time::timeout(LONG, self.stream.read_buf(&mut self.buffer)).await;
                    assert!(read.expect("an answer").unwrap() > 0, "the node has closed the connection");
                }
            }
        }
        answers
    }
}

#[track_caller]
fn all_done(answers: &[v1::Answer]) {
    for answer in answers {
        assert!(!matches!(answer.kind, Some(v1::answer::Kind::Error(_))), "{answer:?}");
    }
}

/// Creates the state that makes operations expensive.
async fn populate(caller: &Caller, session: &str) {
    let mut frames = Frames::connect(caller).await;
    let held = (0..LOCKS).map(|number| Kind::Acquire(acquire(session, long("held", number))));
    all_done(&frames.call(held.collect()).await);
    let opened = (0..SESSIONS)
        .map(|_| Kind::OpenSession(v1::OpenSessionRequest { ttl_ms: 600_000, owner: "o".repeat(500) }));
    all_done(&frames.call(opened.collect()).await);
    let value = v1::PutValueRequest { key: VALUE.into(), value: vec![1; 60 << 10], ..Default::default() };
    all_done(&frames.call(vec![Kind::PutValue(value), Kind::Acquire(acquire(session, CROWDED))]).await);
    // These are not answered before the end of the attack.
    let waits = (0..WAITERS).map(|number| {
        let request = format!("waiter-{number}");
        Kind::Acquire(v1::AcquireRequest { wait_forever: true, request, ..acquire(session, CROWDED) })
    });
    let operations = waits.zip(1..).map(|(kind, id)| v1::Operation { id, kind: Some(kind) });
    let mut bytes = BytesMut::new();
    frame::encode(&v1::ClientFrame { operations: operations.collect() }, &mut bytes);
    frames.stream.write_all(&bytes).await.unwrap();
    // Sent after them: when this is answered, they wait.
    let value = v1::PutValueRequest { key: VALUE.into(), value: vec![1; 60 << 10], ..Default::default() };
    Frames::connect(caller).await.call(vec![Kind::PutValue(value)]).await;
}

/// Renews a session repeatedly. Returns the slowest duration and the count.
async fn renew(renewal: &mut impl AsyncFnMut(), stop: &AtomicBool) -> (Duration, u32) {
    let (mut slowest, mut count) = (Duration::ZERO, 0);
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        renewal().await;
        slowest = slowest.max(sent.elapsed());
        count += 1;
        tokio::time::sleep(PAUSE).await;
    }
    (slowest, count)
}

/// Runs clients of another identity, one on each protocol.
async fn renew_on_all_protocols(victim: &Caller, stop: &AtomicBool) -> [(&'static str, Duration, u32); 3] {
    let (one, two, three) = (victim.session().await, victim.session().await, victim.session().await);
    let mut frames = Frames::connect(victim).await;
    let mut over_frames = async || {
        all_done(&frames.call(vec![Kind::KeepAlive(v1::KeepAliveAll { sessions: vec![one.clone()] })]).await);
    };
    let mut node = LockkeeperClient::new(victim.channel().await.unwrap());
    let authorization: tonic::metadata::MetadataValue<_> =
        format!("Bearer {}", victim.token.as_ref().unwrap()).parse().unwrap();
    let mut over_grpc = async || {
        let mut request = Request::new(v1::KeepAliveRequest { session: two.clone() });
        request.metadata_mut().insert("authorization", authorization.clone());
        node.keep_alive(request).await.unwrap();
    };
    let body = json!({"session": three});
    // Each on a new connection, which has to be accepted.
    let mut over_http = async || drop(victim.post("/v1/session/keepalive", body.clone()).await.ok());
    let (frames, grpc, http) =
        tokio::join!(renew(&mut over_frames, stop), renew(&mut over_grpc, stop), renew(&mut over_http, stop));
    [("frames", frames.0, frames.1), ("gRPC", grpc.0, grpc.1), ("HTTP", http.0, http.1)]
}

async fn known(admin: &Caller, identity: &str, rights: &[&str]) -> Caller {
    let rule = json!({"identity": identity, "prefix": "", "rights": rights});
    admin.post("/v1/access/grant", rule).await.ok();
    let made = admin.post("/v1/access/token/create", json!({"identity": identity})).await.ok();
    Caller { token: Some(made["token"].as_str().unwrap().to_owned()), ..admin.clone() }
}

struct Setup {
    plain: TestNode,
    adversary: Adversary,
    hoarder: Adversary,
    victim: Caller,
}

/// Starts a node with little memory, a lot of state and three identities.
async fn set_up() -> Setup {
    let plain = TestNode::start(&[]).await;
    let limited = Command::new("prlimit")
        .args(["--pid", &plain.process().to_string(), &format!("--data={}", RESERVED_MAX_MIB << 20)])
        .status()
        .expect("prlimit (util-linux)");
    assert!(limited.success());
    let open = Caller { address: plain.node.address.clone(), ca: None, own: None, token: None };
    let enabled = open.post("/v1/access/enable", json!({"identity": "admin"})).await.ok();
    let admin = Caller { token: Some(enabled["token"].as_str().unwrap().to_owned()), ..open };
    let caller = known(&admin, "adversary", &["acquire", "force_release"]).await;
    let opened = caller.post("/v1/session/open", json!({"ttl_ms": 600_000})).await.ok();
    let session = opened["session"].as_str().unwrap().to_owned();
    populate(&caller, &session).await;
    let hoarder =
        Adversary { caller: known(&admin, "hoarder", &["acquire"]).await, session: session.clone() };
    let victim = known(&admin, "victim", &["acquire"]).await;
    Setup { plain, adversary: Adversary { caller, session }, hoarder, victim }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn node_under_attack_stays_within_its_memory_and_serves_others() {
    let (attackers, others) = (runtime(), runtime());
    let Setup { plain, adversary, hoarder, victim } = others.block_on(set_up());
    let stop = Arc::new(AtomicBool::new(false));
    // On a separate thread, to measure the node and not the test.
    let renewals = std::thread::spawn({
        let (victim, stop) = (victim.clone(), stop.clone());
        move || runtime().block_on(renew_on_all_protocols(&victim, &stop))
    });
    let tasks = attackers.block_on(async {
        let mut tasks = JoinSet::new();
        adversary.attack(&mut tasks);
        hoarder.exhaust_budget(&mut tasks);
        tasks
    });
    let (began, mut peak) = (Instant::now(), 0);
    while began.elapsed() < attack_time() && !renewals.is_finished() {
        peak = peak.max(plain.memory_mib());
        std::thread::sleep(Duration::from_millis(50));
    }
    stop.store(true, Ordering::Relaxed);
    attackers.block_on(async { drop(tasks) });
    attackers.shutdown_background();
    let renewed = renewals.join().expect("all keep-alives were answered");
    println!("after {:?}: at most {peak} MiB of {CAP_MIB}; {renewed:?}", began.elapsed());
    let within = if has_other_binary() { KEEP_ALIVE_WITHIN } else { KEEP_ALIVE_UNOPTIMISED_WITHIN };
    for (protocol, slowest, count) in renewed {
        assert!(count > 10, "{count} keep-alives over {protocol}");
        assert!(slowest < within, "a keep-alive over {protocol} waited for {slowest:?}");
    }
    assert!(peak < CAP_MIB, "{peak} MiB");
    others.block_on(async {
        let session = victim.session().await;
        victim.acquire(&session, "after the attack").await.ok();
    });
}
