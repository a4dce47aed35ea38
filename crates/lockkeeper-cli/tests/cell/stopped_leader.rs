//! A leader is paused for longer than its lease without noticing. Meanwhile another node took over and the state changed.
//! It must not answer the requests in its sockets from its expired lease (S3).

use std::time::{Duration, Instant};

use bytes::BytesMut;
use lockkeeper::{GuardState, Keeper};
use lockkeeper_api::v1;
use lockkeeper_api::v1::{answer, operation};
use lockkeeper_net::frame::{self, GREETING};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::cell::Cell;
use crate::harness::client::{grant, open_session, token};
use crate::harness::http::Http;

/// Each round is another chance for a stale answer.
const ROUNDS: usize = 4;
/// Generous, for a busy machine. The measured time is printed.
const TAKEOVER_MAX: Duration = Duration::from_secs(15);

/// Opens a connection with frames, like the library.
async fn connect_frames(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(GREETING).await.unwrap();
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).await.unwrap();
    stream
}

async fn send_attach(stream: &mut TcpStream, session: &str) {
    let kind = operation::Kind::Attach(v1::AttachRequest { session: session.to_owned() });
    let frame = v1::ClientFrame { operations: vec![v1::Operation { id: 1, kind: Some(kind) }] };
    let mut bytes = BytesMut::new();
    frame::encode(&frame, &mut bytes);
    stream.write_all(&bytes).await.unwrap();
}

/// The first answer, or none if the connection was closed.
async fn first_answer(stream: &mut TcpStream) -> Option<answer::Kind> {
    let mut buffer = BytesMut::new();
    loop {
        if let Some(frame) = frame::decode::<v1::ServerFrame>(&mut buffer, 1 << 20).unwrap()
            && let Some(answer) = frame.answers.into_iter().next()
        {
            return answer.kind;
        }
        match stream.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

#[tokio::test]
async fn resumed_leader_gives_no_stale_answers() {
    let cell = Cell::start(3).await;
    for round in 0..ROUNDS {
        let old = cell.leader().await;
        let lock = format!("job-{round}");
        let holder = open_session(&cell, 60_000).await;
        let closed = open_session(&cell, 60_000).await;
        let granted = token(&grant(&cell, &holder, &lock).await);
        let listen_addr = cell.node(old).listen_addr.clone();
        let mut before: Vec<Http> = Vec::new();
        for _ in 0..5 {
            before.push(Http::connect(&listen_addr).await.unwrap());
        }
        let mut stream = connect_frames(&listen_addr).await;

        cell.stop(old);
        let stopped = Instant::now();
        let new = cell.leader_among(&cell.others(old)).await;
        println!("round {round}: new leader {} ms after the stop", stopped.elapsed().as_millis());
        assert!(stopped.elapsed() < TAKEOVER_MAX);
        // The session is closed, and the lock changes hands.
        println!("node {new} leads");
        cell.call("/v1/session/close", Some(&json!({"session": closed}))).await;
        let release = json!({"session": holder, "lock": lock, "token": granted});
        cell.call("/v1/lock/release", Some(&release)).await;
        let next = open_session(&cell, 60_000).await;
        let newer = token(&grant(&cell, &next, &lock).await);
        cell.call("/v1/value/put", Some(&json!({"key": lock, "value": "new"}))).await;

        // These requests wait in the sockets of the paused leader, on old and new connections.
        let mut keep_alives = vec![before.pop().unwrap(), Http::connect(&listen_addr).await.unwrap()];
        for http in &mut keep_alives {
            http.send_post("/v1/session/keepalive", &json!({"session": closed})).await.unwrap();
        }
        let mut reads = vec![before.pop().unwrap(), Http::connect(&listen_addr).await.unwrap()];
        for http in &mut reads {
            http.send_get(&format!("/v1/lock?name={lock}")).await.unwrap();
        }
        let mut check = before.pop().unwrap();
        check.send_post("/v1/token/check", &json!({"lock": lock, "token": granted})).await.unwrap();
        let mut value = before.pop().unwrap();
        value.send_get(&format!("/v1/value?key={lock}")).await.unwrap();
        let mut write = before.pop().unwrap();
        let body = json!({"session": holder, "lock": format!("other-{round}")});
        write.send_post("/v1/lock/acquire", &body).await.unwrap();
        send_attach(&mut stream, &closed).await;

        cell.resume(old);
        for http in &mut keep_alives {
            let answer = http.receive().await.unwrap();
            assert!(matches!(answer.status, 410 | 421 | 503), "a closed session was renewed: {answer:?}");
        }
        for http in &mut reads {
            let answer = http.receive().await.unwrap();
            let fresh = answer.status == 200 && answer.body["holders"][0]["token"] == newer;
            assert!(fresh || matches!(answer.status, 421 | 503), "a stale holder was returned: {answer:?}");
        }
        let answer = check.receive().await.unwrap();
        let fresh = answer.status == 200 && answer.body["valid"] == false;
        assert!(fresh || matches!(answer.status, 421 | 503), "a stale token was reported valid: {answer:?}");
        let answer = value.receive().await.unwrap();
        let fresh = answer.status == 200 && answer.body["value"] == "new";
        assert!(fresh || matches!(answer.status, 421 | 503), "a stale value was returned: {answer:?}");
        // A grant needs a majority: it is refused, or it is real.
        let answer = write.receive().await.unwrap();
        assert!(matches!(answer.status, 200 | 421 | 503), "{answer:?}");
        if answer.status == 200 {
            assert!(token(&answer.body) > newer, "a grant by a deposed leader: {answer:?}");
        }
        match first_answer(&mut stream).await {
            None | Some(answer::Kind::Error(_)) => {}
            other => panic!("a closed session was attached: {other:?}"),
        }
        cell.until_in_sync(&[1, 2, 3]).await;
    }
}

#[tokio::test]
async fn clients_of_a_paused_leader_switch_to_the_new_one() {
    let cell = Cell::start(3).await;
    let old = cell.leader().await;
    let ttl = Duration::from_secs(5);
    let keeper = cell.keeper(Keeper::builder().ttl(ttl)).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let others = cell.others(old);

    cell.stop(old);
    let stopped = Instant::now();
    let waiting = keeper.lock("kept").wait(Duration::from_secs(60));
    let next = tokio::spawn(async move { waiting.acquire().await });
    cell.leader_among(&others).await;
    // The client finds the new leader and renews there, before its lease is over.
    while stopped.elapsed() < ttl * 3 / 2 {
        assert_eq!(guard.state(), GuardState::Held, "{:?} after the stop", stopped.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seen = cell.read("/v1/lock?name=kept").await;
    assert_eq!(seen["holders"][0]["token"], guard.token().0);
    assert_eq!(seen["waiting"], 1, "{seen}");
    cell.resume(old);
    cell.until_in_sync(&[1, 2, 3]).await;
    let first = guard.token();
    guard.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert!(next.token() > first);
    next.release().await.unwrap();
}
