//! Callers that disconnect before their answer is sent: their grants are released.

use std::time::Duration;

use lockkeeper_server::{Node, NodeConfig};
use rustix::net::RecvFlags;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Client, PATIENCE, request, start};

/// Opens a connection that closes with a reset, whatever is in flight.
async fn connect(client: Client) -> TcpStream {
    let stream = TcpStream::connect(client.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    stream
}

/// The status line of the answer as far as the socket has received it; empty without an answer.
fn received_status(stream: &TcpStream) -> String {
    let mut status = [0; "HTTP/1.1 200".len()];
    let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let bytes = rustix::net::recv(stream, &mut status, peek).map_or(0, |(_, bytes)| bytes);
    String::from_utf8_lossy(&status[..bytes]).into_owned()
}

fn post(path: &str, body: &serde_json::Value) -> Vec<u8> {
    request("POST", path, "content-type: application/json\r\n", body.to_string().as_bytes())
}

/// Returns one of the requests that can be granted without waiting and without a request id, and its lock.
fn request_body(session: &str, number: usize) -> (&'static str, serde_json::Value, String) {
    match number % 3 {
        0 => ("/v1/lock/acquire", json!({"session": session, "lock": "one"}), "one".to_owned()),
        1 => ("/v1/lock/acquire_all", json!({"session": session, "locks": ["a", "b"]}), "b".to_owned()),
        _ => (
            "/v1/election/campaign",
            json!({"session": session, "election": "e", "value": "v"}),
            "election/e".to_owned(),
        ),
    }
}

/// Resets 200 connections, each after a different number of turns of the node, which runs on this thread. Returns how many
/// were reset before any of their answer arrived; their grants must be released. The session lives for a minute, so nothing
/// else releases the locks within the test's timeout.
async fn reset_all(client: Client, turns: impl Fn(usize) -> usize) -> usize {
    let session = client.session().await;
    let mut unanswered = 0;
    for number in 0..200 {
        let (path, body, lock) = request_body(&session, number);
        let name = lock.replace('/', "%2F");
        let mut stream = connect(client).await;
        stream.write_all(&post(path, &body)).await.unwrap();
        for _ in 0..turns(number) {
            tokio::task::yield_now().await;
        }
        let status = received_status(&stream);
        drop(stream);
        // A busy node may refuse the request.
        let refused = !status.is_empty() && status != "HTTP/1.1 200";
        if refused {
            continue;
        }
        if !status.is_empty() {
            // A grant whose answer has arrived must be released by the client.
            let holder = client.lock(&name).await["holders"][0]["token"].as_u64().unwrap();
            let locks = if number % 3 == 1 { vec!["a", "b"] } else { vec![lock.as_str()] };
            for lock in locks {
                client.release(&session, lock, holder).await.ok();
            }
        } else {
            unanswered += 1;
        }
        client.until_free(&name).await;
    }
    unanswered
}

#[tokio::test(flavor = "current_thread")]
async fn reset_before_the_answer_leaves_no_holder() {
    let (_node, client) = start().await;
    let unanswered = reset_all(client, |number| number % 8).await;
    assert!(unanswered >= 20, "only {unanswered} of 200 were reset before they were answered");
}

/// The same with a disk, which adds latency between the request and the answer.
#[tokio::test(flavor = "current_thread")]
async fn reset_during_the_sync_leaves_no_holder() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::start(NodeConfig::durable(folder.path())).await.unwrap();
    let address = node.listen("127.0.0.1:0").await.unwrap();
    let unanswered = reset_all(Client { address }, |number| number % 8).await;
    assert!(unanswered >= 20, "only {unanswered} of 200 were reset before they were answered");
    node.stop().await;
}

/// Once an answer is sent the grant belongs to the client, whether or not it reads the answer.
#[tokio::test(flavor = "current_thread")]
async fn grant_is_kept_once_its_answer_is_sent() {
    let (_node, client) = start().await;
    let session = client.session().await;
    for number in 0..30 {
        let lock = format!("kept-{number}");
        let mut stream = connect(client).await;
        stream
            .write_all(&post("/v1/lock/acquire", &json!({"session": session, "lock": lock})))
            .await
            .unwrap();
        // The answer has arrived, and half of the clients do not read it.
        tokio::time::timeout(PATIENCE, stream.readable()).await.unwrap().unwrap();
        if number % 2 == 0 {
            let mut read = Vec::new();
            stream.read_to_end(&mut read).await.unwrap();
        }
        drop(stream);
    }
    // A release of one of the grants would have been queued before this one.
    let last = client.take(&session, "last").await;
    client.release(&session, "last", last).await.ok();
    for number in 0..30 {
        let held = client.lock(&format!("kept-{number}")).await;
        assert_eq!(held["holders"].as_array().map(Vec::len), Some(1), "{held}");
    }
}

/// With a request id the caller can retry and get its grant.
#[tokio::test(flavor = "current_thread")]
async fn grant_of_a_request_with_an_id_is_kept() {
    let (_node, client) = start().await;
    let session = client.session().await;
    for number in 0..40 {
        let lock = format!("lock-{number}");
        let body = json!({"session": session, "lock": lock, "request": format!("r{number}")});
        let mut stream = connect(client).await;
        stream.write_all(&post("/v1/lock/acquire", &body)).await.unwrap();
        for _ in 0..number / 2 {
            tokio::task::yield_now().await;
        }
        drop(stream);
        let token = client.post("/v1/lock/acquire", body).await.ok()["token"].as_u64().unwrap();
        client.release(&session, &lock, token).await.ok();
    }
}

/// Without the release the locks would stay held, and these tests would notice it.
#[cfg(feature = "simulation")]
#[tokio::test(flavor = "current_thread")]
async fn grants_without_a_receiver_are_noticed() {
    use lockkeeper_core::mutation::{Mutation, put_back};

    let (_node, client) = start().await;
    put_back(Some(Mutation::KeepUndelivered));
    let session = client.session().await;
    let mut unanswered = Vec::new();
    for number in 0..200 {
        let lock = format!("lock-{number}");
        let mut stream = connect(client).await;
        stream
            .write_all(&post("/v1/lock/acquire", &json!({"session": session, "lock": lock})))
            .await
            .unwrap();
        for _ in 0..number % 8 {
            tokio::task::yield_now().await;
        }
        if received_status(&stream).is_empty() {
            unanswered.push(lock);
        }
    }
    let mut held = 0;
    for lock in &unanswered {
        held += client.lock(lock).await["holders"].as_array().map_or(0, Vec::len);
    }
    put_back(None);
    assert!(held > 0, "none of {} locks is held", unanswered.len());
}
