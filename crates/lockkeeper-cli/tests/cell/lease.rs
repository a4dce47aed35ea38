//! What a leader may answer when it can ask nobody: as long as its lease lasts, reads and renewals; afterwards nothing (S3).

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::cell::Cell;
use crate::harness::client::open_session;
use crate::harness::http::Http;

/// On a busy machine the lease may be over before the first question is there: then another round is tried.
const ROUNDS_MAX: usize = 20;
/// Generous: a busy machine.
const SAYS_SO_WITHIN: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_leader_answers_from_its_lease_and_not_beyond_it() {
    let cell = Cell::start(3).await;
    let session = open_session(&cell, 60_000).await;
    let (mut answered, mut in_doubt) = (false, false);
    for round in 0..ROUNDS_MAX {
        let leader = cell.until_agreed().await;
        let listens = cell.node(leader).listens.clone();
        let mut reads = Http::connect(&listens).await.unwrap();
        let mut renewals = Http::connect(&listens).await.unwrap();
        let mut writes = Http::connect(&listens).await.unwrap();
        // So that nothing but the question itself is left to be done.
        reads.get("/v1/lock?name=a").await.unwrap();
        let keep_alive = json!({"session": session});
        renewals.post("/v1/session/keepalive", &keep_alive).await.unwrap();

        cell.others(leader).into_iter().for_each(|follower| cell.stop(follower));
        let stopped = Instant::now();
        // Nobody is there who could be asked: whoever answers now does it without a round trip.
        let read = reads.get("/v1/lock?name=a").await.unwrap();
        let renewed = renewals.post("/v1/session/keepalive", &keep_alive).await.unwrap();
        let took = stopped.elapsed();
        writes.send_post("/v1/value/put", &json!({"key": "k", "value": round.to_string()})).await.unwrap();
        answered |= read.status == 200 && renewed.status == 200;

        // Once it has refused, it refuses until they are back.
        let mut refused = false;
        while !refused || stopped.elapsed() < Duration::from_millis(1_500) {
            let read = reads.get("/v1/lock?name=a").await.unwrap();
            let renewed = renewals.post("/v1/session/keepalive", &keep_alive).await.unwrap();
            assert!(!refused || (read.status, renewed.status) == (503, 503), "{read:?} {renewed:?}");
            refused = (read.status, renewed.status) == (503, 503);
            assert!(stopped.elapsed() < SAYS_SO_WITHIN, "its lease does not end: {read:?} {renewed:?}");
        }
        // What was on its way to the others may still happen, and the answer says so; a value has no request id.
        let write = writes.receive().await.unwrap();
        assert_eq!((write.status, write.code()), (503, "unavailable"), "{write:?}");
        if write.body["error"]["may_have_happened"] == true {
            let message = write.body["error"]["message"].as_str().unwrap_or_default();
            assert!(message.contains("read the value before you repeat it"), "{message}");
            in_doubt = true;
        }
        cell.others(leader).into_iter().for_each(|follower| cell.go_on(follower));
        println!("round {round}: read {} and renewal {} within {took:?}", read.status, renewed.status);
        if answered && in_doubt {
            return;
        }
    }
    panic!("in {ROUNDS_MAX} rounds: answered from the lease: {answered}, a write in doubt: {in_doubt}");
}
