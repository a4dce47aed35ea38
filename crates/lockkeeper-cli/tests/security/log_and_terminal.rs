//! Log lines and terminal output with text of other clients.

use bytes::BytesMut;
use lockkeeper_api::v1;
use lockkeeper_net::frame::{self, GREETING};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::connections::TestNode;
use crate::fixture::Caller;
use crate::harness::{http, until};

const FLOOD: usize = 1_500;

/// Unauthenticated callers can send anything, as often as they like.
#[tokio::test]
async fn unauthenticated_callers_cannot_flood_the_log() {
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    let mut too_many = BytesMut::from(&GREETING[..]);
    let operations = vec![v1::Operation::default(); 20_000];
    frame::encode(&v1::ClientFrame { operations }, &mut too_many);
    let mut no_frame = GREETING.to_vec();
    no_frame.extend([0xff; 64]);
    let mut message = GREETING.to_vec();
    message.extend([0, 0, 0, 8]);
    message.extend([0xff; 8]);
    for round in 0..FLOOD {
        let bytes: &[u8] = match round % 50 {
            0 => &too_many,
            odd if odd % 2 == 1 => &no_frame,
            _ => &message,
        };
        if let Ok(mut stream) = TcpStream::connect(address).await {
            let _ = stream.write_all(bytes).await;
        }
    }
    until("a warning in the log", async || plain.node.log_text().contains("WARN").then_some(())).await;
    plain.assert_works().await;
    let lines = plain.node.log_text().lines().count();
    println!("{FLOOD} connections, {lines} lines");
    assert!(lines < FLOOD / 10, "{lines} lines for {FLOOD} connections");
}

/// A name and an owner with bidirectional control characters.
#[tokio::test]
async fn names_and_owners_cannot_control_a_terminal() {
    const NAME: &str = "orders/\u{202e}2744";
    const OWNER: &str = "me\u{2066}\u{200f}";
    let plain = TestNode::start(&["--slow-acquire", "1ms"]).await;
    let address = &plain.node.address;
    let open = async || {
        let opened =
            http::post(address, "/v1/session/open", &json!({"ttl_ms": 60_000, "owner": OWNER})).await;
        opened.unwrap().ok()["session"].clone()
    };
    let session = open().await;
    let held = http::post(address, "/v1/lock/acquire", &json!({"session": session, "lock": NAME})).await;
    let held = held.unwrap().ok();
    let wait = json!({"session": open().await, "lock": NAME, "wait_ms": 60_000, "request": "r"});
    let waiting = tokio::spawn({
        let address = address.clone();
        async move { http::post(&address, "/v1/lock/acquire", &wait).await }
    });
    let caller = Caller { address: address.clone(), ca: None, own: None, token: None };
    until("the waiter", async || {
        let shown = caller.cli(&["who", NAME]).await;
        String::from_utf8_lossy(&shown.stdout).contains("WAITING").then_some(())
    })
    .await;
    let verbs: [&[&str]; 9] = [
        &["ls"],
        &["who", NAME],
        &["explain", NAME],
        &["history", NAME],
        &["top", "--once"],
        &["ls", "-o", "json"],
        &["who", NAME, "-o", "json"],
        &["run", NAME, "--no-wait", "--", "true"],
        &["force-release", NAME, "--reason", "test \u{202e}", "--yes"],
    ];
    let mut seen = 0;
    for words in verbs {
        let output = caller.cli(words).await;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(
            !text.chars().any(|c| c != '\n' && (c.is_control() || "\u{202e}\u{2066}\u{200f}".contains(c))),
            "{words:?}: {text:?}"
        );
        seen += usize::from(text.contains("202e"));
    }
    assert!(seen >= 5, "the names are shown, escaped: {seen}");
    waiting.await.unwrap().unwrap().ok();
    drop(held);
    plain.node.until_log("slow acquire").await;
    let log = plain.node.log_text();
    assert!(!log.contains('\u{202e}') && !log.contains('\u{2066}'), "{log}");
}
