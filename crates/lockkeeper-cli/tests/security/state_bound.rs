//! A state at its bound, on a node whose memory is capped: the node starts again with it, deletes work, and then new things.

use lockkeeper_api::v1;
use lockkeeper_api::v1::answer::Kind as Answer;
use lockkeeper_api::v1::operation::Kind;
use serde_json::json;

use crate::adversary::frames::{Frames, assert_done};
use crate::connections::TestNode;
use crate::fixture::Caller;
use crate::harness::http;
use crate::memory_cap::MemoryCap;

/// Bytes of a name.
const NAME_BYTES: usize = 512;
/// Locks to release before the next try to acquire one.
const RELEASED_AT_ONCE: u64 = 100;

/// Sends operations until the state is full, in frames of this many. Returns how many were accepted.
async fn fill(frames: &mut Frames, per_frame: u64, make: impl Fn(u64) -> Kind) -> u64 {
    let mut accepted = 0;
    loop {
        let first = accepted;
        let answers = frames.call((first..first + per_frame).map(&make).collect()).await.unwrap();
        for answer in &answers {
            match answer {
                Answer::Error(error) => assert_eq!(error.code, "limit", "{error:?}"),
                _ => accepted += 1,
            }
        }
        if accepted < first + per_frame {
            return accepted;
        }
    }
}

/// Starts a node with this bound on its state and this cap on its memory.
async fn start(cap: &MemoryCap, state_mib: u64) -> (TestNode, Caller) {
    let plain = TestNode::start_capped(cap, &[]).await;
    let address = plain.node.address.clone();
    let bound = json!({"state_bytes": state_mib << 20});
    http::post(&address, "/v1/access/quota", &bound).await.unwrap().ok();
    (plain, Caller { address, ca: None, own: None, token: None })
}

/// The bytes in use, and their bound.
async fn usage(plain: &TestNode) -> (u64, u64) {
    let status = plain.node.until_status().await;
    (status["state_bytes"].as_u64().unwrap(), status["state_bytes_max"].as_u64().unwrap())
}

#[tokio::test]
async fn node_full_of_values_restarts_and_deletes() {
    const STATE_MIB: u64 = 256;
    const CAP_MIB: u64 = 640;
    let cap = MemoryCap::new(CAP_MIB);
    let (mut plain, caller) = start(&cap, STATE_MIB).await;
    let put = |number: u64| {
        let key = format!("values/{number}");
        Kind::PutValue(v1::PutValueRequest { key, value: vec![number as u8; 64 << 10], ..Default::default() })
    };
    let count = fill(&mut Frames::connect(&caller).await.unwrap(), 40, put).await;
    let (used, bound) = usage(&plain).await;
    let peak = plain.memory_peak_mib();
    println!("{count} values: {used} of {bound} bytes, at most {peak} MiB");
    assert!(used > bound - (128 << 10), "it is full: {used} of {bound}");

    plain.restart_capped(&cap, &[]).await;
    println!("restarted with at most {} MiB", plain.memory_peak_mib());
    let (after, _) = usage(&plain).await;
    // The new leader is recorded.
    assert!(after >= used && after < used + (4 << 10), "what was accepted is still there: {used}, {after}");
    let mut frames = Frames::connect(&caller).await.unwrap();
    let refused = frames.call(vec![put(count)]).await.unwrap();
    assert!(matches!(&refused[0], Answer::Error(error) if error.code == "limit"), "{refused:?}");
    let delete = v1::DeleteValueRequest { key: "values/0".into(), ..Default::default() };
    assert_done(&frames.call(vec![Kind::DeleteValue(delete)]).await.unwrap());
    assert_done(&frames.call(vec![put(count)]).await.unwrap());
    assert!(plain.memory_peak_mib() < CAP_MIB, "{} MiB", plain.memory_peak_mib());
}

#[tokio::test]
async fn node_full_of_long_names_restarts_and_releases() {
    const STATE_MIB: u64 = 64;
    const CAP_MIB: u64 = 256;
    let cap = MemoryCap::new(CAP_MIB);
    let (mut plain, caller) = start(&cap, STATE_MIB).await;
    let mut frames = Frames::connect(&caller).await.unwrap();
    let open = Kind::OpenSession(v1::OpenSessionRequest { ttl_ms: 3_600_000, owner: "names".into() });
    let opened = frames.call(vec![open]).await.unwrap();
    let Answer::OpenSession(v1::OpenSessionResponse { session, .. }) = &opened[0] else {
        panic!("{opened:?}")
    };
    let acquire = |number: u64| {
        let lock = format!("{number:0NAME_BYTES$}");
        Kind::Acquire(v1::AcquireRequest { session: session.clone(), lock, ..Default::default() })
    };
    let count = fill(&mut frames, 4_000, acquire).await;
    let (used, bound) = usage(&plain).await;
    let peak = plain.memory_peak_mib();
    println!("{count} locks: {used} of {bound} bytes, at most {peak} MiB");
    assert!(used > bound - (128 << 10), "it is full: {used} of {bound}");

    plain.restart_capped(&cap, &[]).await;
    println!("restarted with at most {} MiB", plain.memory_peak_mib());
    let mut frames = Frames::connect(&caller).await.unwrap();
    let refused = frames.call(vec![acquire(count)]).await.unwrap();
    assert!(matches!(&refused[0], Answer::Error(error) if error.code == "limit"), "{refused:?}");
    let keep_alive = Kind::KeepAlive(v1::KeepAliveAll { sessions: vec![session.clone()] });
    let kept = frames.call(vec![keep_alive]).await.unwrap();
    assert!(matches!(&kept[0], Answer::KeepAlive(kept) if kept.ttl_ms[0] > 0), "{kept:?}");
    // What a release leaves behind, such as the last token and an event of the history, is part of the state.
    let mut released = 0;
    loop {
        let names = (released..(released + RELEASED_AT_ONCE).min(count))
            .map(|number| format!("{number:0NAME_BYTES$}"));
        let looks = names.map(|lock| Kind::GetLock(v1::GetLockRequest { lock })).collect();
        let releases = frames.call(looks).await.unwrap().into_iter().map(|answer| match answer {
            Answer::Lock(lock) => {
                let (token, session) = (lock.holders[0].token, session.clone());
                Kind::Release(v1::ReleaseRequest { session, lock: lock.lock, token, forget: true })
            }
            other => panic!("{other:?}"),
        });
        let releases: Vec<Kind> = releases.collect();
        released += releases.len() as u64;
        assert_done(&frames.call(releases).await.unwrap());
        let (used, _) = usage(&plain).await;
        println!("{released} of {count} locks released: {used} bytes");
        match &frames.call(vec![acquire(count)]).await.unwrap()[0] {
            Answer::Grant(_) => break,
            refused => assert!(released < count, "{refused:?}"),
        }
    }
    assert!(plain.memory_peak_mib() < CAP_MIB, "{} MiB", plain.memory_peak_mib());
}
