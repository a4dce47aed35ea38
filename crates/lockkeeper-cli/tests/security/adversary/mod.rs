//! An adversary with ordinary rights runs every operation in its most expensive form, on all protocols at once, and a stranger
//! without rights is at work beside it. The node, whose memory is capped and whose state is filled to its bound, stays below the
//! cap, and keep-alives of other clients stay fast.
//!
//! LOCKKEEPER_ADVERSARY_SECONDS=60 runs it in full. LOCKKEEPER_NODE_BINARY selects another build of the node. `scripts/adversary`
//! does both, with an optimised build.

mod attacks;
mod contract;
pub mod frames;
mod grpc;
mod holdings;
mod http;
mod operations;
pub mod other_services;
mod state;
mod stranger;
mod tally;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_api::v1;
use lockkeeper_api::v1::answer::Kind as Answer;
use lockkeeper_api::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_api::v1::operation::Kind;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::Request;

use self::attacks::{Adversary, FRAMES, GRPC_STREAM, LARGE};
use self::frames::{Frames, assert_done};
use self::grpc::GRPC;
use self::holdings::{candidate, waits};
use self::http::HTTP;
use self::operations::{CROWDED, VALUE, acquire, long};
use self::other_services::OTHERS;
use self::state::{FILL, STATE};
use self::stranger::{STRANGER, Stranger};
use self::tally::Tally;
use crate::connections::TestNode;
use crate::fixture::Caller;
use crate::harness::node::has_other_binary;
use crate::memory_cap::MemoryCap;

/// Default duration of the attack.
const ATTACK: Duration = Duration::from_secs(25);
/// Time limit for an answer to every operation.
const COVERED_WITHIN: Duration = Duration::from_secs(180);
/// The node's cap on memory, far below what a single unbounded request used to take.
const CAP_MIB: u64 = 768;
/// What must be left of it: the budgets of three identities, the state and everything else fit with room to spare.
const HEADROOM_MIB: u64 = 32;
/// The bound on the replicated state, which the adversary reaches.
const STATE_MIB: u64 = 192;
/// Time limit for a keep-alive of another client, with an optimised build of the node.
const KEEP_ALIVE_WITHIN: Duration = Duration::from_millis(500);
/// The same for a debug build on a shared machine.
const KEEP_ALIVE_UNOPTIMISED_WITHIN: Duration = Duration::from_millis(2_500);
/// Pause between two keep-alives of one client.
const PAUSE: Duration = Duration::from_millis(10);

// State before the attack: long names, long queues, many sessions.
const LOCKS: u64 = 2_000;
const WAITERS: u64 = 1_000;
const SESSIONS: usize = 5_000;
const TTL_MS: u64 = 600_000;

fn attack_time() -> Duration {
    let seconds = std::env::var("LOCKKEEPER_ADVERSARY_SECONDS").ok().and_then(|text| text.parse().ok());
    seconds.map_or(ATTACK, Duration::from_secs)
}

/// Creates the state that makes operations expensive. The queue lasts as long as the connection.
async fn populate(caller: &Caller, session: &str) -> io::Result<Frames> {
    let mut frames = Frames::connect(caller).await?;
    let held = (0..LOCKS).map(|number| Kind::Acquire(acquire(session, long("held", number))));
    assert_done(&frames.call(held.collect()).await?);
    let open = |ttl_ms| Kind::OpenSession(v1::OpenSessionRequest { ttl_ms, owner: "o".repeat(500) });
    let opened = frames.call(vec![open(TTL_MS); SESSIONS]).await?;
    assert_done(&opened);
    let Some(Answer::OpenSession(v1::OpenSessionResponse { session: waiter, .. })) = opened.first() else {
        panic!("a session")
    };
    let value = || v1::PutValueRequest { key: VALUE.into(), value: vec![1; 60 << 10], ..Default::default() };
    assert_done(&frames.call(vec![Kind::PutValue(value()), Kind::Acquire(acquire(session, CROWDED))]).await?);
    // These are not answered before the end of the attack.
    let queue = (0..WAITERS).map(|number| {
        let request = waits(waiter, CROWDED, format!("waiter-{number}"));
        Kind::Acquire(v1::AcquireRequest { value: candidate(), scope: format!("scope-{number}"), ..request })
    });
    frames.send(queue.collect()).await?;
    // Sent after them: when this is answered, they wait.
    assert_done(&frames.call(vec![Kind::PutValue(value())]).await?);
    Ok(frames)
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
    let mut frames = Frames::connect(victim).await.unwrap();
    let mut over_frames = async || {
        let renewal = Kind::KeepAlive(v1::KeepAliveAll { sessions: vec![one.clone()] });
        assert_done(&frames.call(vec![renewal]).await.unwrap());
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

/// Sets the bound on the replicated state; 0 for the default.
async fn bound_state(admin: &Caller, mib: u64) {
    admin.post("/v1/access/quota", json!({"state_bytes": mib << 20})).await.ok();
}

struct Setup {
    /// Holds the queue.
    _frames: Frames,
    plain: TestNode,
    // Last: the node ends before its control group is removed.
    _cap: MemoryCap,
    admin: Caller,
    adversary: Adversary,
    hoarder: Adversary,
    victim: Caller,
}

/// Starts a node with little memory, a lot of state and four identities.
async fn set_up() -> Setup {
    let cap = MemoryCap::new(CAP_MIB);
    let plain = TestNode::start_capped(&cap, &[]).await;
    let open = Caller { address: plain.node.address.clone(), ca: None, own: None, token: None };
    let enabled = open.post("/v1/access/enable", json!({"identity": "admin"})).await.ok();
    let admin = Caller { token: Some(enabled["token"].as_str().unwrap().to_owned()), ..open };
    bound_state(&admin, STATE_MIB).await;
    let caller = known(&admin, "adversary", &["acquire", "force_release"]).await;
    let opened = caller.post("/v1/session/open", json!({"ttl_ms": 600_000})).await.ok();
    let session = opened["session"].as_str().unwrap().to_owned();
    let frames = populate(&caller, &session).await.unwrap();
    let tally = Tally::default();
    let hoarder = known(&admin, "hoarder", &["acquire", "force_release"]).await;
    let own = hoarder.session().await;
    let hoarder = Adversary { caller: hoarder, session: own, tally: tally.clone() };
    let victim = known(&admin, "victim", &["acquire"]).await;
    Setup {
        _frames: frames,
        plain,
        _cap: cap,
        admin,
        adversary: Adversary { caller, session, tally },
        hoarder,
        victim,
    }
}

/// Operations of the contract that were not answered yet: with a success, if the adversary has the right.
fn missing(tally: &Tally, http_calls: &[String]) -> Vec<String> {
    let stream = contract::stream_operations();
    let streamed = [FRAMES, GRPC_STREAM]
        .into_iter()
        .flat_map(|protocol| stream.iter().map(move |operation| tally.check(protocol, operation, true)));
    let called = contract::methods()
        .into_iter()
        .filter(|method| method != "stream")
        .map(|method| tally.check(GRPC, &method, !grpc::ADMINISTRATIVE.contains(&method.as_str())));
    let heads = http_calls.iter().filter_map(|call| Some(format!("HEAD {}", call.strip_prefix("GET ")?)));
    let over_http = http_calls
        .iter()
        .cloned()
        .chain(heads)
        .map(|call| tally.check(HTTP, &call, !http::is_administrative(&call)));
    let others =
        other_services::CALLS.iter().map(|(call, is_permitted)| tally.check(OTHERS, call, *is_permitted));
    let of_stranger = stranger::PATHS.iter().map(|(path, may_read)| tally.check(STRANGER, path, *may_read));
    let all = streamed.chain(called).chain(over_http).chain(others).chain(of_stranger);
    let mut missing: Vec<String> = all.filter_map(Result::err).collect();
    missing.extend(tally.check(LARGE, "acquire_all", false).err());
    missing.extend(tally.check_refused(STATE, FILL).err());
    missing
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn node_under_attack_stays_within_its_memory_and_serves_others() {
    let (attackers, others) = (runtime(), runtime());
    let setup = others.block_on(set_up());
    let Setup { plain, admin, adversary, hoarder, victim, .. } = &setup;
    let http_calls = others.block_on(contract::http_calls(victim));
    let stop = Arc::new(AtomicBool::new(false));
    // On a separate thread, to measure the node and not the test.
    let renewals = std::thread::spawn({
        let (victim, stop) = (victim.clone(), stop.clone());
        move || runtime().block_on(renew_on_all_protocols(&victim, &stop))
    });
    let tasks = attackers.block_on(async {
        let mut tasks = JoinSet::new();
        adversary.attack(&mut tasks);
        adversary.fill_state(&mut tasks);
        hoarder.exhaust_budget(&mut tasks);
        Stranger::new(victim, &adversary.tally).attack(&mut tasks);
        tasks
    });
    let began = Instant::now();
    // On a busy machine, until every operation had its turn.
    let is_complete =
        || began.elapsed() > COVERED_WITHIN || missing(&adversary.tally, &http_calls).is_empty();
    while (began.elapsed() < attack_time() || !is_complete()) && !renewals.is_finished() {
        std::thread::sleep(Duration::from_millis(50));
    }
    stop.store(true, Ordering::Relaxed);
    attackers.block_on(async { drop(tasks) });
    attackers.shutdown_background();
    let renewed = renewals.join().expect("all keep-alives were answered");
    let peak = plain.memory_peak_mib();
    print!("{}", adversary.tally);
    println!("after {:?}: at most {peak} MiB of {CAP_MIB}; {renewed:?}", began.elapsed());
    let within = if has_other_binary() { KEEP_ALIVE_WITHIN } else { KEEP_ALIVE_UNOPTIMISED_WITHIN };
    for (protocol, slowest, count) in renewed {
        assert!(count > 10, "{count} keep-alives over {protocol}");
        assert!(slowest < within, "a keep-alive over {protocol} waited for {slowest:?}");
    }
    assert!(peak + HEADROOM_MIB <= CAP_MIB, "{peak} MiB of {CAP_MIB}, of which {HEADROOM_MIB} must be left");
    assert_eq!(missing(&adversary.tally, &http_calls), Vec::<String>::new());
    others.block_on(async {
        // The state may be full.
        bound_state(admin, 0).await;
        let session = victim.session().await;
        victim.acquire(&session, "after the attack").await.ok();
    });
}
