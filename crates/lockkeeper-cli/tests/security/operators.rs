//! Operators of a node whose client connections are all in use.

use std::process::Output;

use lockkeeper_net::frame::GREETING;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::connections::TestNode;
use crate::harness::http;
use crate::harness::node::lockkeeper;

/// Opens idle clients until no connection is free.
async fn idle_clients(address: &str) -> Vec<TcpStream> {
    let mut idle = Vec::new();
    loop {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let sent = stream.write_all(&[&GREETING[..], &[0; 4]].concat()).await;
        if sent.is_err() || stream.read_exact(&mut [0; GREETING.len()]).await.is_err() {
            return idle;
        }
        idle.push(stream);
    }
}

/// Runs the CLI against this node.
async fn run(address: &str, words: &[&str]) -> Output {
    let mut command = tokio::process::Command::from(lockkeeper());
    command.args(words).env("LOCKKEEPER_ENGINE", format!("lockkeeper://{address}"));
    command.output().await.unwrap()
}

#[tokio::test]
async fn full_open_node_answers_operators_and_refuses_clients() {
    let plain = TestNode::start(&["--connections-max", "30"]).await;
    let address = &plain.node.address;
    let _idle = idle_clients(address).await;
    let refused = http::get(address, "/v1/locks").await.unwrap();
    assert_eq!((refused.status, refused.code()), (429, "limit"));
    let status = http::get(address, "/v1/status").await.unwrap();
    assert_eq!((status.status, &status.body["leader"]), (200, &1.into()));
    for path in ["/v1/members", "/metrics"] {
        assert_eq!(http::get(address, path).await.unwrap().status, 200, "{path}");
    }
    // It is answered, by the cell and not by the limit.
    let removed = http::post(address, "/v1/member/remove", &json!({"node_id": 9})).await.unwrap();
    assert_ne!(removed.status, 429, "{removed:?}");

    for words in [&["status"][..], &["member", "list"]] {
        let output = run(address, words).await;
        let shown = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(shown.contains(address.as_str()), "{words:?}: {shown}");
    }
    let output = run(address, &["ls"]).await;
    assert_ne!(output.status.code(), Some(0), "clients are refused");
}
