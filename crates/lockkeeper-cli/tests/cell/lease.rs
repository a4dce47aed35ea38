//! A leader cut off from its followers answers reads and renewals until its lease ends, and nothing afterwards (S3).

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::cell::Cell;
use crate::harness::client::open_session;
use crate::harness::http::Http;
use crate::harness::report_retry;

/// On a busy machine the lease may end before the first request arrives. Then another round is tried.
const ROUNDS_MAX: usize = 20;
/// Generous, for a busy machine.
const REFUSES_WITHIN: Duration = Duration::from_secs(10);

#[tokio::test]
async fn leader_answers_while_its_lease_lasts_and_not_longer() {
    let cell = Cell::start(3).await;
    let session = open_session(&cell, 60_000).await;
    let (mut answered, mut in_doubt) = (false, false);
    for round in 0..ROUNDS_MAX {
        let leader = cell.until_agreed().await;
        let listen_addr = cell.node(leader).listen_addr.clone();
        let mut reads = Http::connect(&listen_addr).await.unwrap();
        let mut renewals = Http::connect(&listen_addr).await.unwrap();
        let mut writes = Http::connect(&listen_addr).await.unwrap();
        // Warm up the connections.
        reads.get("/v1/lock?name=a").await.unwrap();
        let keep_alive = json!({"session": session});
        renewals.post("/v1/session/keepalive", &keep_alive).await.unwrap();

        cell.others(leader).into_iter().for_each(|follower| cell.stop(follower));
        let stopped = Instant::now();
        // The followers are stopped: an answer now comes without a round trip to them.
        let read = reads.get("/v1/lock?name=a").await.unwrap();
        let renewed = renewals.post("/v1/session/keepalive", &keep_alive).await.unwrap();
        let took = stopped.elapsed();
        writes.send_post("/v1/value/put", &json!({"key": "k", "value": round.to_string()})).await.unwrap();
        answered |= read.status == 200 && renewed.status == 200;

        // After the first refusal it refuses until the followers are back.
        let mut refused = false;
        while !refused || stopped.elapsed() < Duration::from_millis(1_500) {
            let read = reads.get("/v1/lock?name=a").await.unwrap();
            let renewed = renewals.post("/v1/session/keepalive", &keep_alive).await.unwrap();
            assert!(!refused || (read.status, renewed.status) == (503, 503), "{read:?} {renewed:?}");
            refused = (read.status, renewed.status) == (503, 503);
            assert!(stopped.elapsed() < REFUSES_WITHIN, "the lease does not end: {read:?} {renewed:?}");
        }
        // The write in flight may still happen, and the error reports that; a put has no request id.
        let write = writes.receive().await.unwrap();
        assert_eq!((write.status, write.code()), (503, "unavailable"), "{write:?}");
        if write.body["error"]["may_have_happened"] == true {
            let message = write.body["error"]["message"].as_str().unwrap_or_default();
            assert!(message.contains("read the value before you retry"), "{message}");
            in_doubt = true;
        }
        cell.others(leader).into_iter().for_each(|follower| cell.resume(follower));
        println!("round {round}: read {} and renewal {} within {took:?}", read.status, renewed.status);
        if answered && in_doubt {
            return;
        }
        report_retry(&format!("round {round}: answered {answered}, a write in doubt {in_doubt}"));
    }
    panic!("in {ROUNDS_MAX} rounds: answered from the lease: {answered}, a write in doubt: {in_doubt}");
}
