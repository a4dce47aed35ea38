//! Cross-site requests that a web page can make a browser send, and malformed request heads.

use std::io;

use ::http::HeaderMap;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::transport::Channel;
use tower_service::Service;

use crate::certificates::Authority;
use crate::connections::TestNode;
use crate::fixture::{CallResult, Caller, SecureNode, SecureNodeOptions};
use crate::harness::node::{Node, free_address};
use crate::harness::{LONG, http, until};
use crate::http2;

/// Sends a raw head and body.
async fn send(address: &str, head: &str, body: &[u8]) -> io::Result<CallResult> {
    send_over(TcpStream::connect(address).await?, head, body).await
}

/// Sends a raw head and body over an open connection.
async fn send_over(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    head: &str,
    body: &[u8],
) -> io::Result<CallResult> {
    stream
        .write_all(format!("{head}connection: close\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes())
        .await?;
    stream.write_all(body).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    match tokio::time::timeout(LONG, stream.read_to_end(&mut answer)).await? {
        // A connection closed without TLS close_notify is fine if there is an answer.
        Err(error) if answer.is_empty() => return Err(error),
        _ => {}
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(CallResult(
        status.ok_or(io::ErrorKind::UnexpectedEof)?,
        serde_json::from_str(body).unwrap_or_default(),
    ))
}

/// A gRPC message with its five-byte prefix.
fn message(bytes: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend((bytes.len() as u32).to_be_bytes());
    framed.extend(bytes);
    framed
}

async fn hold(address: &str, lock: &str) {
    let opened = http::post(address, "/v1/session/open", &json!({"ttl_ms": 60_000})).await.unwrap().ok();
    let request = json!({"session": opened["session"], "lock": lock});
    http::post(address, "/v1/lock/acquire", &request).await.unwrap().ok();
}

async fn holders(address: &str, lock: &str) -> usize {
    let state = http::get(address, &format!("/v1/lock?name={lock}")).await.unwrap().ok();
    state["holders"].as_array().unwrap().len()
}

/// A page may send `text/plain` over HTTP/1.1 without a CORS preflight.
#[tokio::test]
async fn web_page_cannot_call_grpc_methods() {
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    hold(address, "orders").await;
    // ForceReleaseRequest { lock: "orders", reason: "x" }
    let request = message(b"\x0a\x06orders\x12\x01x");
    let paths = [
        "/lockkeeper.v1.Lockkeeper/ForceRelease",
        "/lockkeeper.v1.Lockkeeper/CreateAccessToken",
        "/lockkeeper.v1.Lockkeeper/RemoveMember",
        "/lockkeeper.v1.Lockkeeper/Stream",
        "/lockkeeper.peer.v1.Peer/Hello",
        "/lockkeeper.peer.v1.Peer/Vote",
        "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    ];
    for path in paths {
        for kind in ["text/plain", "application/grpc", "application/grpc-web"] {
            for origin in ["", "origin: https://evil.example\r\n", "sec-fetch-site: cross-site\r\n"] {
                let head =
                    format!("POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: {kind}\r\n{origin}");
                let refused = send(address, &head, &request).await.unwrap().assert_refused(415, "invalid");
                assert!(
                    refused["error"]["message"].as_str().unwrap().contains("application/grpc over HTTP/2")
                );
            }
        }
    }
    assert_eq!(holders(address, "orders").await, 1, "a page released the lock");
    // The same over HTTP/2, which pages can speak as well.
    let mut channel = open(address).channel().await.unwrap();
    let path = "/lockkeeper.v1.Lockkeeper/ForceRelease";
    let (status, _) = call(&mut channel, path, &[("content-type", "text/plain")], &request).await;
    assert_eq!(status, 415);
    let foreign = [("content-type", "application/grpc"), ("origin", "https://evil.example")];
    let (_, code) = call(&mut channel, path, &foreign, &request).await;
    assert_eq!(code.as_deref(), Some("7"), "permission denied");
    assert_eq!(holders(address, "orders").await, 1, "a page released the lock");
    let (_, code) = call(&mut channel, path, &[("content-type", "application/grpc")], &request).await;
    assert_eq!(code, None, "the status is in the trailers: the call succeeded");
    assert_eq!(holders(address, "orders").await, 0);
}

/// A caller of a node without authentication.
fn open(address: &str) -> Caller {
    Caller { address: address.to_owned(), ca: None, own: None, token: None }
}

/// The HTTP status, and the gRPC status if it is in the headers.
async fn call(
    channel: &mut Channel,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> (u16, Option<String>) {
    let answer = answer(channel, path, headers, body).await;
    (answer.status().as_u16(), code_in(answer.headers()))
}

/// The gRPC status, which a stream sends in its trailers.
async fn final_code(
    channel: &mut Channel,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<String> {
    let answer = answer(channel, path, headers, body).await;
    if let Some(code) = code_in(answer.headers()) {
        return Some(code);
    }
    let body = tokio::time::timeout(LONG, answer.into_body().collect()).await.unwrap().unwrap();
    body.trailers().and_then(code_in)
}

fn code_in(headers: &HeaderMap) -> Option<String> {
    headers.get("grpc-status").map(|code| code.to_str().unwrap().to_owned())
}

async fn answer(
    channel: &mut Channel,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> ::http::Response<Body> {
    let mut request = ::http::Request::builder().method("POST").uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Body::new(Full::new(Bytes::copy_from_slice(body)));
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    tokio::time::timeout(LONG, channel.call(request.body(body).unwrap())).await.unwrap().unwrap()
}

/// DNS rebinding: a foreign name resolves to this node, and the browser treats it as the same site.
#[tokio::test]
async fn open_node_serves_known_host_names_only() {
    let plain = TestNode::start(&["--allowed-hosts", "locks.example,B.example"]).await;
    let address = &plain.node.address;
    let get = async |host: &str, more: &str| {
        send(address, &format!("GET /v1/locks HTTP/1.1\r\nhost: {host}\r\n{more}"), b"").await.unwrap()
    };
    for rebound in ["evil.example", "evil.example:7420", "locks.example.evil.example"] {
        let more = format!("origin: http://{rebound}\r\nsec-fetch-site: same-origin\r\n");
        let refused = get(rebound, &more).await.assert_refused(403, "forbidden");
        assert!(refused["error"]["message"].as_str().unwrap().contains("--allowed-hosts"), "{refused}");
        get(rebound, "").await.assert_refused(403, "forbidden");
    }
    for known in [address, "127.0.0.1", "localhost:7420", "locks.example", "b.example:80"] {
        get(known, "").await.ok();
    }
    // Probes are no exception.
    let head = "GET /livez HTTP/1.1\r\nhost: evil.example\r\n";
    send(address, head, b"").await.unwrap().assert_refused(403, "forbidden");
    let mut channel = {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
        endpoint.origin("http://evil.example".parse().unwrap()).connect().await.unwrap()
    };
    let path = "/lockkeeper.v1.Lockkeeper/ListLocks";
    let (_, code) = call(&mut channel, path, &[("content-type", "application/grpc")], &message(b"")).await;
    assert_eq!(code.as_deref(), Some("7"), "permission denied");
}

/// Sends a request for the state of the node over an open connection, and returns the status.
async fn status_for(mut stream: impl AsyncRead + AsyncWrite + Unpin, host: &str) -> u16 {
    let head = format!("GET /livez HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut status = [0; 12];
    tokio::time::timeout(LONG, stream.read_exact(&mut status)).await.unwrap().unwrap();
    std::str::from_utf8(&status[9..]).unwrap().parse().unwrap()
}

/// As in a compose file: each node knows all names of the cell, also of members that it cannot resolve.
#[tokio::test]
async fn names_of_the_cell_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address(7420);
    let mut node = Node::new(1, address.clone(), address.clone(), folder.path());
    let cell = format!("1={address},2=node2.invalid:7420,3=Node3.invalid:7420");
    node.spawn(&["--cell", &cell]);
    until("the node to listen", async || http::quick_get(&address, "/livez").await).await;
    for (host, expected) in [
        ("node2.invalid:7420", 200),
        ("node2.invalid", 200),
        ("node3.invalid:80", 200),
        ("node4.invalid:7420", 403),
        ("x.node2.invalid", 403),
    ] {
        let stream = TcpStream::connect(&address).await.unwrap();
        assert_eq!(status_for(stream, host).await, expected, "{host}");
    }
}

#[tokio::test]
async fn names_of_the_certificate_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "nodes");
    let address = free_address(7420);
    let own = authority.issue("node", &[&address, "locks.example"]);
    let mut node = Node::new(1, address.clone(), address.clone(), folder.path());
    let files = [&own.certificate, &own.key].map(|file| file.to_str().unwrap());
    // TLS, and callers that are not authenticated.
    node.spawn(&["--tls-cert", files[0], "--tls-key", files[1]]);
    let caller = Caller { address, ca: Some(authority.file.clone()), own: None, token: None };
    until("the node to listen", async || caller.get("/livez").await.ok()).await;
    for (host, expected) in [("locks.example", 200), ("locks.example:443", 200), ("evil.example", 403)] {
        let stream = caller.credentials().connect(&caller.address, None, |_| Ok(())).await.unwrap();
        assert_eq!(status_for(stream, host).await, expected, "{host}");
    }
}

/// A separate port for members has the same gate.
#[tokio::test]
async fn web_page_cannot_call_the_members_port() {
    let folder = tempfile::tempdir().unwrap();
    let (address, members) = (free_address(7420), free_address(7421));
    let mut node = Node::new(1, address.clone(), members.clone(), folder.path());
    node.spawn(&["--peer-listen", &members, "--cell", &format!("1={members}")]);
    until("the node to serve", async || node.leading_term().await).await;
    let hello = "POST /lockkeeper.peer.v1.Peer/Hello HTTP/1.1\r\n";
    for kind in ["text/plain", "application/grpc", "application/json"] {
        let head =
            format!("{hello}host: {members}\r\ncontent-type: {kind}\r\norigin: https://evil.example\r\n");
        send(&members, &head, &message(b"")).await.unwrap().assert_refused(415, "invalid");
    }
    for (host, more) in [("evil.example", ""), (&*members, "origin: https://evil.example\r\n")] {
        let head = format!("GET /v1/locks HTTP/1.1\r\nhost: {host}\r\n{more}");
        send(&members, &head, b"").await.unwrap().assert_refused(403, "forbidden");
    }
    let mut channel = open(&members).channel().await.unwrap();
    let path = "/lockkeeper.peer.v1.Peer/Hello";
    let foreign = [("content-type", "application/grpc"), ("origin", "https://evil.example")];
    let (_, code) = call(&mut channel, path, &foreign, &message(b"")).await;
    assert_eq!(code.as_deref(), Some("7"), "permission denied");
    let (_, code) = call(&mut channel, path, &[("content-type", "application/grpc")], &message(b"")).await;
    assert_eq!(code, None, "a member is answered");
    // Calls of clients are not served there.
    let path = "/lockkeeper.v1.Lockkeeper/ListLocks";
    let (_, code) = call(&mut channel, path, &[("content-type", "application/grpc")], &message(b"")).await;
    assert_eq!(code.as_deref(), Some("12"), "unimplemented");
}

#[tokio::test]
async fn node_with_authentication_serves_any_host_name() {
    let secure = SecureNode::start().await;
    // Its callers name the host "localhost"; the certificate is for an address.
    let stream =
        secure.anonymous().credentials().connect(&secure.node.address, None, |_| Ok(())).await.unwrap();
    assert_eq!(status_for(stream, "lockkeeper-client.lockkeeper.svc").await, 200);
}

#[tokio::test]
async fn request_must_name_exactly_one_host() {
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    for (head, status) in [
        ("GET /livez HTTP/1.1\r\n", 400),
        ("GET /livez HTTP/1.1\r\nhost:\r\n", 400),
        ("GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n", 400),
        ("GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n", 400),
        ("GET http://127.0.0.1/livez HTTP/1.1\r\nhost: evil.example\r\n", 400),
        ("GET /livez HTTP/1.1\r\nhost: evil.example@127.0.0.1\r\n", 400),
        ("GET http://127.0.0.1/livez HTTP/1.1\r\nhost: 127.0.0.1\r\n", 200),
        ("GET /livez HTTP/1.1\r\nhost: localhost\r\n", 200),
        // HTTP/1.0 has no such header; no browser speaks it.
        ("GET /livez HTTP/1.0\r\n", 200),
    ] {
        let CallResult(answered, body) = send(address, head, b"").await.unwrap();
        assert_eq!(answered, status, "{head}: {body}");
        if status == 400 {
            assert_eq!(body["error"]["code"], "invalid", "{head}: {body}");
        }
    }
}

#[tokio::test]
async fn malformed_grpc_message_is_invalid_argument() {
    let plain = TestNode::start(&[]).await;
    let mut channel = open(&plain.node.address).channel().await.unwrap();
    let kind = [("content-type", "application/grpc")];
    for path in [
        "/lockkeeper.v1.Lockkeeper/ForceRelease",
        "/lockkeeper.v1.Lockkeeper/Stream",
        "/lockkeeper.v1.Lockkeeper/ObserveElection",
        "/lockkeeper.peer.v1.Peer/Hello",
        "/lockkeeper.peer.v1.Peer/Join",
        "/lockkeeper.peer.v1.Peer/SnapshotOffer",
        "/lockkeeper.peer.v1.Peer/SnapshotSend",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        // Not the reflection service: the library ends its stream without an error.
    ] {
        let code = final_code(&mut channel, path, &kind, &message(b"\xff\xff\xff")).await;
        assert_eq!(code.as_deref(), Some("3"), "{path}");
    }
}

/// Spellings and protocols that could bypass the host check.
#[tokio::test]
async fn host_check_cannot_be_bypassed() {
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    let port = address.rsplit_once(':').unwrap().1;
    let get = async |host: &str, more: &str| {
        send(address, &format!("GET /v1/locks HTTP/1.1\r\nhost: {host}\r\n{more}"), b"").await.unwrap()
    };
    // A sandboxed page, a page of another port or another scheme's site, a WebSocket of a page.
    let socket = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: eA==\r\n";
    for more in [
        "origin: null\r\n",
        "origin: http://localhost:1\r\n",
        "origin: localhost\r\n",
        "origin: http://evil.example\r\nsec-fetch-site: same-site\r\n",
        "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n",
        &format!("origin: http://evil.example\r\n{socket}"),
    ] {
        get(address, more).await.assert_refused(403, "forbidden");
    }
    // The node's own page, and names of the loopback in all spellings.
    get(address, &format!("origin: http://{address}\r\n")).await.ok();
    for host in ["localhost.", "LocalHost:1", "[::1]", &format!("[::1]:{port}"), "a.localhost"] {
        get(host, "").await.ok();
    }
    for host in [
        "127.0.0.1.evil.example",
        "[::1].evil.example",
        "localhost.evil.example.",
        "[::1",
        "0x7f.1",
        "evil.example:80:80",
    ] {
        get(host, "").await.assert_refused(403, "forbidden");
    }
    // No protocol switches by a header.
    let upgrade =
        "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n";
    get("localhost", upgrade).await.ok();
    // HTTP/2 that names two hosts.
    let mut channel = open(address).channel().await.unwrap();
    let headers = [("content-type", "application/grpc"), ("host", "evil.example")];
    let path = "/lockkeeper.v1.Lockkeeper/ListLocks";
    let (status, code) = call(&mut channel, path, &headers, &message(b"")).await;
    assert!(status == 400 || code.is_some_and(|code| code != "0"), "{status}");
}

/// A browser presents root's certificate by itself, for a page of any site.
#[tokio::test]
async fn web_page_cannot_use_the_certificate_of_root() {
    let words = ["--root-name".to_owned(), "boss".to_owned()];
    let options = SecureNodeOptions { client_ca: true, root_token: true, words: words.to_vec() };
    let secure = SecureNode::with(options).await;
    let boss = secure.certified("boss");
    let rule = json!({"identity": "eve", "prefix": "", "rights": ["admin"]}).to_string();
    let grant = async |more: &str| {
        let stream = boss.credentials().connect(&boss.address, None, |_| Ok(())).await.unwrap();
        let head = format!(
            "POST /v1/access/grant HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n{more}",
            boss.address
        );
        send_over(stream, &head, rule.as_bytes()).await.unwrap()
    };
    // GrantAccessRequest { identity: "eve", rights: ["admin"] }
    let message = message(b"\x0a\x03eve\x1a\x05admin");
    let path = "/lockkeeper.v1.Lockkeeper/GrantAccess";
    let mut channel = boss.channel().await.unwrap();
    let grpc = ("content-type", "application/grpc");
    for (name, value) in
        [("origin", "https://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")]
    {
        grant(&format!("{name}: {value}\r\n")).await.assert_refused(403, "forbidden");
        let (_, code) = call(&mut channel, path, &[grpc, (name, value)], &message).await;
        assert_eq!(code.as_deref(), Some("7"), "{name}: {value}: permission denied");
    }
    let access = boss.read("/v1/access").await.ok().to_string();
    assert!(!access.contains("eve"), "a page has made a rule: {access}");
    // The same requests without a page.
    let (_, code) = call(&mut channel, path, &[grpc], &message).await;
    assert_eq!(code, None, "the status is in the trailers: the call succeeded");
    grant("").await.ok();
}

/// Sends a GET over HTTP/2 with these pseudo-headers and headers. Returns the first byte of the answer's headers, which is the
/// index of its status in the static table of HPACK.
async fn http2_status(address: &str, headers: &[(&str, &str)]) -> u8 {
    const END: u8 = 0x5;
    let block: Vec<u8> = headers.iter().flat_map(|(name, value)| http2::header(name, value)).collect();
    let mut stream = http2::connect(address, 1 << 16).await;
    stream.write_all(&http2::frame(http2::HEADERS, END, 1, &block)).await.unwrap();
    loop {
        let mut head = [0; 9];
        tokio::time::timeout(LONG, stream.read_exact(&mut head)).await.unwrap().unwrap();
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
        if head[3] == http2::HEADERS {
            return payload[0];
        }
    }
}

/// Without a name the host check would have nothing to check.
#[tokio::test]
async fn http2_request_without_an_authority_is_refused() {
    const OK: u8 = 0x88;
    const BAD_REQUEST: u8 = 0x8c;
    let plain = TestNode::start(&[]).await;
    let address = &plain.node.address;
    let head = [(":method", "GET"), (":scheme", "http"), (":path", "/v1/locks")];
    let with = |more: &[(&'static str, &'static str)]| [&head[..], more].concat();
    assert_eq!(http2_status(address, &with(&[])).await, BAD_REQUEST);
    assert_eq!(http2_status(address, &with(&[(":authority", "localhost")])).await, OK);
    assert_eq!(http2_status(address, &with(&[("host", "localhost")])).await, OK);
}
