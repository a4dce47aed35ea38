//! A node with an open port, and a client that speaks HTTP over a plain socket, so that the tests see the exact bytes on the
//! wire.

mod api;
mod disconnect;
mod input;
mod openapi;
mod state;
mod work;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lockkeeper_server::{Node, NodeConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Timeout of everything in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Starts a node, which the test must keep, and a client of it.
pub(crate) async fn start() -> (Node, Client) {
    let mut node = Node::start(NodeConfig::in_memory()).await.expect("the node starts");
    let address = node.listen("127.0.0.1:0").await.expect("the port opens");
    (node, Client { address })
}

/// A client. Every request has a connection of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
}

impl Client {
    /// Opens a connection and sends these bytes.
    pub(crate) async fn connect(self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("the port is open");
        stream.write_all(bytes).await.expect("the request is sent");
        stream
    }

    /// Sends these bytes and reads until the node closes the connection.
    pub(crate) async fn send(self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect(bytes).await;
        let mut read = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read))
            .await
            .expect("an answer in time")
            .expect("an answer");
        Answer::parse(&read)
    }

    pub(crate) async fn request(self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let answer = self.send(&request(method, path, headers, body)).await;
        openapi::check(method, path, &answer);
        answer
    }

    pub(crate) async fn get(self, path: &str) -> Answer {
        self.request("GET", path, "", b"").await
    }

    pub(crate) async fn post(self, path: &str, body: Value) -> Answer {
        self.request("POST", path, "content-type: application/json\r\n", body.to_string().as_bytes()).await
    }

    /// Starts a POST in the background.
    pub(crate) fn post_later(self, path: &'static str, body: Value) -> tokio::task::JoinHandle<Answer> {
        tokio::spawn(self.post(path, body))
    }

    /// Opens a session that outlives the test.
    pub(crate) async fn session(self) -> String {
        self.session_of(60_000, "test").await
    }

    pub(crate) async fn session_of(self, ttl_ms: u64, owner: &str) -> String {
        let opened = self.post("/v1/session/open", json!({"ttl_ms": ttl_ms, "owner": owner})).await.ok();
        opened["session"].as_str().expect("a session id").to_owned()
    }

    /// Acquires a lock without waiting and returns its token.
    pub(crate) async fn take(self, session: &str, lock: &str) -> u64 {
        let granted = self.post("/v1/lock/acquire", json!({"session": session, "lock": lock})).await.ok();
        granted["token"].as_u64().expect("a token")
    }

    pub(crate) async fn release(self, session: &str, lock: &str, token: u64) -> Answer {
        self.post("/v1/lock/release", json!({"session": session, "lock": lock, "token": token})).await
    }

    /// Reads a lock whose name needs no escapes.
    pub(crate) async fn lock(self, name: &str) -> Value {
        self.get(&format!("/v1/lock?name={name}")).await.ok()
    }

    /// Polls a lock until it is in the wanted state.
    pub(crate) async fn until(self, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let lock = self.lock(name).await;
            if is_so(&lock) {
                return lock;
            }
            assert!(began.elapsed() < PATIENCE, "{name} never was {what}: {lock}");
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    pub(crate) async fn until_waiting(self, name: &str, count: u64) -> Value {
        self.until(name, &format!("waited for by {count}"), |lock| lock["waiting"] == count).await
    }

    pub(crate) async fn until_free(self, name: &str) -> Value {
        self.until(name, "free", |lock| lock["holders"] == json!([])).await
    }
}

/// Returns the bytes of a request.
pub(crate) fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Answer {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8(bytes[..end].to_vec()).expect("a head in ASCII");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Answer { status, head, body: bytes[end + 4..].to_vec() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{} is not JSON ({error}): {}", self.status, self.text()))
    }

    /// Returns the answer of a call that must have succeeded.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// Returns the error of a call that must have failed with this status and code.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) -> Value {
        let error = self.json()["error"].clone();
        assert_eq!((self.status, &error["code"]), (status, &json!(code)), "{}", self.text());
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
        error
    }
}
