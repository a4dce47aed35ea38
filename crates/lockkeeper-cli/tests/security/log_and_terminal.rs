//! Log lines and terminal output with text of other clients.

use bytes::BytesMut;
use lockkeeper_api::{peer, v1};
use lockkeeper_net::frame::{self, GREETING, MEMBERS_GREETING};
use prost::Message;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::connections::TestNode;
use crate::fixture::{Caller, SecureNode};
use crate::harness::node::Node;
use crate::harness::{LONG, http, until};
use crate::http2;

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

/// Sends these bytes on many connections, and returns the number of lines that the node logs.
async fn lines_of_flood(node: &Node, floods: &[&[u8]]) -> usize {
    let before = node.log_text().lines().count();
    for round in 0..FLOOD {
        let Ok(mut stream) = TcpStream::connect(&node.listen_addr).await else { continue };
        let _ = stream.write_all(floods[round % floods.len()]).await;
        // The node reads what arrives before the end.
        let _ = stream.shutdown().await;
        let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut Vec::new())).await;
    }
    node.log_text().lines().count() - before
}

/// What strangers and members-to-be can send, on each protocol.
#[tokio::test]
async fn refused_callers_cannot_flood_the_log() {
    let plain = TestNode::start(&[]).await;
    let secure = SecureNode::start().await;
    let header = peer::Header { format: 1, from: 2, to: 1, proof: vec![7; 32].into(), ..Default::default() };
    let kind = Some(peer::peer_request::Kind::Vote(vec![0xff; 20].into()));
    let mut forged = BytesMut::from(&MEMBERS_GREETING[..]);
    frame::encode(&peer::PeerRequest { header: Some(header), format: 1, id: 1, kind }, &mut forged);
    let no_frame = [MEMBERS_GREETING, &[0xff; 64][..]].concat();
    let stranger = Caller { address: plain.node.address.clone(), ca: None, own: None, token: None };
    let hello = peer::HelloRequest { cell: "other".into(), proof: vec![7; 32].into(), ..Default::default() };
    let hello = [&[0, 0, 0, 0, hello.encoded_len() as u8][..], &hello.encode_to_vec()].concat();
    let hello = [
        http2::preface(1 << 16),
        http2::grpc_request(1, &stranger, "/lockkeeper.peer.v1.Peer/Hello", &hello, true),
    ]
    .concat();
    let members = lines_of_flood(&plain.node, &[&forged, &no_frame, &hello]).await;

    let request = |head: &str, body: &str| {
        let length = body.len();
        format!("{head}connection: close\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
    };
    let errors = [
        request("GET /nowhere HTTP/1.1\r\nhost: localhost\r\n", ""),
        request("GET /v1/locks HTTP/1.1\r\nhost: evil.example\r\n", ""),
        request("GET /v1/locks HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example\r\n", ""),
        request("POST /v1/lock/acquire HTTP/1.1\r\nhost: localhost\r\n", "{"),
        request("POST /lockkeeper.v1.Lockkeeper/Acquire HTTP/1.1\r\nhost: localhost\r\n", ""),
        b"no request at all\r\n\r\n".to_vec(),
    ];
    let errors: Vec<&[u8]> = errors.iter().map(Vec::as_slice).collect();
    let http = lines_of_flood(&plain.node, &errors).await;

    // A record that is no handshake, and plain text on a port with TLS.
    let record = [&[0x16, 3, 1, 0, 32][..], &[1; 32]].concat();
    let tls = lines_of_flood(&secure.node, &[&record, b"GET / HTTP/1.1\r\n\r\n", GREETING]).await;
    println!("{FLOOD} connections each: {members} lines for members, {http} for HTTP, {tls} for TLS");
    for lines in [members, http, tls] {
        assert!(lines < FLOOD / 10, "{lines} lines for {FLOOD} connections");
    }
    plain.assert_works().await;
    secure.root().read("/v1/status").await.ok();
}

/// Text of other clients: bidirectional control characters, and lines that look like those of the CLI.
const NAME: &str = "orders/\u{202e}2744";
const OWNER: &str = "me\u{2066}\u{200f}\nFORGED owner";
const VALUE: &str = "leader\u{202e}\u{1b}[2J\nFORGED  epoch 9  somebody";

/// Whether the output has a line of another client, or what controls a terminal.
#[track_caller]
fn assert_harmless(words: &[&str], text: &str) {
    let is_control = |c: char| c != '\n' && (c.is_control() || "\u{202e}\u{2066}\u{200f}".contains(c));
    assert!(!text.chars().any(is_control), "{words:?}: {text:?}");
    assert!(!text.lines().any(|line| line.trim_start().starts_with("FORGED")), "{words:?}: {text}");
}

async fn open_session(address: &str) -> Value {
    let opened = http::post(address, "/v1/session/open", &json!({"ttl_ms": 60_000, "owner": OWNER})).await;
    opened.unwrap().ok()["session"].clone()
}

/// The output of a verb, with its errors.
async fn shown(caller: &Caller, words: &[&str]) -> String {
    let output = caller.cli(words).await;
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[tokio::test]
async fn names_and_owners_cannot_control_a_terminal() {
    let plain = TestNode::start(&["--slow-acquire", "1ms"]).await;
    let address = &plain.node.address;
    let session = open_session(address).await;
    let held = http::post(address, "/v1/lock/acquire", &json!({"session": session, "lock": NAME})).await;
    held.unwrap().ok();
    let wait =
        json!({"session": open_session(address).await, "lock": NAME, "wait_ms": 60_000, "request": "r"});
    let waiting = tokio::spawn({
        let address = address.clone();
        async move { http::post(&address, "/v1/lock/acquire", &wait).await }
    });
    let caller = Caller { address: address.clone(), ca: None, own: None, token: None };
    until("the waiter", async || shown(&caller, &["who", NAME]).await.contains("WAITING").then_some(()))
        .await;
    let verbs: [&[&str]; 11] = [
        &["ls"],
        &["who", NAME],
        &["explain", NAME],
        &["history", NAME],
        &["top", "--once"],
        &["ls", "-o", "json"],
        &["who", NAME, "-o", "json"],
        &["doctor"],
        &["member", "list"],
        &["run", NAME, "--no-wait", "--", "true"],
        &["force-release", NAME, "--reason", "test \u{202e}\nFORGED reason", "--yes"],
    ];
    let mut seen = 0;
    for words in verbs {
        let text = shown(&caller, words).await;
        assert_harmless(words, &text);
        seen += usize::from(text.contains("202e"));
    }
    assert!(seen >= 5, "the names are shown, escaped: {seen}");
    waiting.await.unwrap().unwrap().ok();
    assert_harmless(&["history"], &shown(&caller, &["history"]).await);
    plain.node.until_log("slow acquire").await;
    let log = plain.node.log_text();
    assert!(!log.contains('\u{202e}') && !log.contains('\u{2066}'), "{log}");
}

/// The value of a leader is free text of its client.
#[tokio::test]
async fn values_of_candidates_cannot_control_a_terminal() {
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    let campaign = json!({"session": open_session(address).await, "election": "boss", "value": VALUE});
    http::post(address, "/v1/election/campaign", &campaign).await.unwrap().ok();
    let caller = Caller { address: address.clone(), ca: None, own: None, token: None };
    let verbs: [&[&str]; 5] = [
        &["observe", "boss", "--once"],
        &["observe", "boss", "--once", "-o", "json"],
        &["who", "election/boss"],
        &["explain", "election/boss"],
        &["elect", "boss", "--value", "mine", "--no-wait", "--", "true"],
    ];
    for words in verbs {
        assert_harmless(words, &shown(&caller, words).await);
    }
    let line = shown(&caller, verbs[0]).await;
    assert!(line.contains("epoch") && line.lines().count() == 1, "one line for one leader: {line:?}");
}

/// Identities of rules and tokens are free text of an administrator.
#[tokio::test]
async fn identities_cannot_control_a_terminal() {
    const IDENTITY: &str = "ci\u{202e}";
    let secure = SecureNode::start().await;
    let root = secure.root();
    let (mut accepted, rule) =
        (0, |identity: &str| json!({"identity": identity, "prefix": "a/\u{2066}", "rights": ["read"]}));
    for identity in [IDENTITY, "ci\nFORGED identity"] {
        accepted += u32::from(root.post("/v1/access/grant", rule(identity)).await.0 == 200);
    }
    for words in [&["access", "list"][..], &["history"]] {
        let text = shown(&root, words).await;
        assert_harmless(words, &text);
        assert!(accepted == 0 || text.contains("ci\\u"), "{words:?}: {text}");
    }
}
