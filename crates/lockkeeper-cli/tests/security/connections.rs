//! Many connections, slow connections and oversized requests.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use lockkeeper::Keeper;
use lockkeeper_api::v1;
use lockkeeper_net::frame::{self, GREETING};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::fixture::SecureNode;
use crate::harness::node::{Node, free_address};
use crate::harness::skip::skip_or_fail;
use crate::harness::{LONG, http, until};
use crate::memory_cap::MemoryCap;

const IDLE: usize = 10_000;

pub struct TestNode {
    pub node: Node,
    process: u32,
    _folder: tempfile::TempDir,
}

impl TestNode {
    pub async fn start(words: &[&str]) -> TestNode {
        let folder = tempfile::tempdir().unwrap();
        let address = free_address(7420);
        let mut node = Node::new(1, address.clone(), address, folder.path());
        let process = node.spawn(words);
        until("the node to serve", async || node.leading_term().await).await;
        TestNode { node, process, _folder: folder }
    }

    /// Starts a node that authenticates its callers.
    pub async fn start_secured(words: &[&str]) -> TestNode {
        let folder = tempfile::tempdir().unwrap();
        let address = free_address(7420);
        let mut node = Node::new(1, address.clone(), address.clone(), folder.path());
        let process = node.spawn(words);
        until("the node to serve", async || {
            assert!(!node.has_ended(), "it has ended: {}", node.log_text());
            http::quick_get(&address, "/readyz").await.filter(|ready| ready.status == 200)
        })
        .await;
        TestNode { node, process, _folder: folder }
    }

    /// Starts a node whose memory is capped.
    pub async fn start_capped(cap: &MemoryCap, words: &[&str]) -> TestNode {
        let folder = tempfile::tempdir().unwrap();
        let address = free_address(7420);
        let mut node = Node::new(1, address.clone(), address, folder.path());
        let process = cap.spawn(&mut node, words);
        until("the node to serve", async || node.leading_term().await).await;
        TestNode { node, process, _folder: folder }
    }

    /// Kills the node, and starts it again under the cap.
    pub async fn restart_capped(&mut self, cap: &MemoryCap, words: &[&str]) {
        self.node.kill();
        self.process = cap.spawn(&mut self.node, words);
        until("the node to serve again", async || {
            assert!(!self.node.has_ended(), "it has ended: {}", self.node.log_text());
            self.node.leading_term().await
        })
        .await;
    }

    /// Resident memory of the node in MiB (`setpriv` has become the node by exec).
    pub fn memory_mib(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Peak resident memory in MiB.
    pub fn memory_peak_mib(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process)).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    }

    pub async fn assert_works(&self) {
        let keeper = Keeper::connect(&format!("lockkeeper://{}", self.node.address)).await.unwrap();
        keeper.lock("a").acquire().await.unwrap().release().await.unwrap();
        keeper.close().await.unwrap();
    }

    async fn metric(&self, name: &str) -> Option<f64> {
        let mut stream = TcpStream::connect(&self.node.address).await.unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.rsplit_once(' ')?.1.parse().ok()
    }
}

/// Raises the limit on open files. Returns false if it is too low and tests may be skipped.
pub fn raise_open_file_limit(files: u64) -> bool {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let enough = maximum.is_none_or(|most| most > files + 500);
    if !enough {
        skip_or_fail(
            &format!("this system allows {maximum:?} open files, {files} connections need more"),
            &format!("raise the hard limit with ulimit -Hn {}", files + 1_000),
        );
    }
    enough
}

async fn connect_frames(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(GREETING).await.unwrap();
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).await.unwrap();
    stream
}

#[tokio::test]
async fn ten_thousand_idle_connections_do_not_block_new_clients() {
    if !raise_open_file_limit(IDLE as u64) {
        return;
    }
    let plain = TestNode::start(&[]).await;
    let before = plain.memory_mib();
    let mut idle = Vec::new();
    while idle.len() < IDLE {
        idle.push(connect_frames(&plain.node.address).await);
    }
    let memory = plain.memory_mib();
    println!("{IDLE} idle connections: {before} MiB before, {memory} MiB with them");
    assert!(memory < before + 400, "{memory} MiB");
    plain.assert_works().await;
    assert_eq!(http::get(&plain.node.address, "/livez").await.unwrap().status, 200);
    drop(idle);
    plain.assert_works().await;
}

#[tokio::test]
async fn flood_of_silent_connections_closes_the_oldest() {
    const FLOOD: usize = 3_000;
    if !raise_open_file_limit(FLOOD as u64) {
        return;
    }
    let plain = TestNode::start(&["--connections-silent-max", "200"]).await;
    let before = plain.memory_mib();
    let mut silent = Vec::new();
    for number in 0..FLOOD {
        silent.push(TcpStream::connect(&plain.node.address).await.unwrap());
        if number % 1_000 == 0 {
            plain.assert_works().await;
        }
    }
    plain.assert_works().await;
    let memory = plain.memory_mib();
    assert!(memory < before + 200, "{memory} MiB");
    let closed = plain.metric("lockkeeper_turned_away_total{reason=\"silent\"").await;
    assert!(closed.is_some_and(|count| count >= 100.0), "{closed:?}");
}

#[tokio::test]
async fn one_address_cannot_use_all_connections() {
    let plain = TestNode::start(&["--connections-per-address-max", "20", "--connections-max", "30"]).await;
    let address: SocketAddr = plain.node.address.parse().unwrap();
    let from = async |last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        socket.connect(address).await.unwrap()
    };
    let is_served = async |stream: &mut TcpStream| {
        let mut greeting = [0; GREETING.len()];
        stream.write_all(GREETING).await.is_ok()
            && tokio::time::timeout(LONG, stream.read_exact(&mut greeting)).await.expect("an end").is_ok()
    };
    let mut open_connections = Vec::new();
    for _ in 0..20 {
        let mut stream = from(9).await;
        assert!(is_served(&mut stream).await);
        open_connections.push(stream);
    }
    assert!(!is_served(&mut from(9).await).await, "the 21st of this address");
    for _ in 0..10 {
        let mut stream = from(10).await;
        assert!(is_served(&mut stream).await);
        open_connections.push(stream);
    }
    assert!(!is_served(&mut from(11).await).await, "the 31st in total");
    drop(open_connections);
    until("a free connection", async || is_served(&mut from(9).await).await.then_some(())).await;
}

/// Connections that stall or send too much are closed, on every protocol.
#[tokio::test]
async fn stalled_and_oversized_connections_are_closed() {
    let plain = TestNode::start(&[]).await;
    let secure = SecureNode::start().await;
    let (open, closed) = (plain.node.address.clone(), secure.node.address.clone());
    let mut never_ends = BytesMut::from(&GREETING[..]);
    never_ends.put_u32(1_000);
    never_ends.put_slice(&[0x0a; 10]);
    let mut too_long = BytesMut::from(&GREETING[..]);
    too_long.put_u32(u32::MAX);
    let head = b"POST /v1/lock/acquire HTTP/1.1\r\nhost: localhost\r\nx: ".to_vec();
    let body =
        b"POST /v1/lock/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{\"ses".to_vec();
    let huge = b"POST /v1/value/put HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\nconnection: close\r\n\r\n{"
        .to_vec();
    let mut record = vec![0x16, 3, 1, 0x3f, 0xff];
    record.extend([1; 50]);
    let began = Instant::now();
    let tries = [
        ("nothing at all", &open, Vec::new()),
        ("half a greeting", &open, GREETING[..4].to_vec()),
        ("a frame that never ends", &open, never_ends.to_vec()),
        ("a frame that is too long", &open, too_long.to_vec()),
        ("a head that never ends", &open, head),
        ("a body that never ends", &open, body),
        ("a body that is too long", &open, huge),
        ("no handshake", &closed, Vec::new()),
        ("half a handshake", &closed, record),
        ("no TLS", &closed, b"GET / HTTP/1.1\r\n\r\n".to_vec()),
    ];
    let all = tries.map(|(what, address, bytes)| async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut rest = Vec::new();
        let end = tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await;
        assert!(end.is_ok(), "{what}: still open");
    });
    futures_util::future::join_all(all).await;
    println!("the last was closed after {:?}", began.elapsed());
    plain.assert_works().await;
    secure.root().read("/v1/status").await.ok();
}

/// Unauthenticated callers have a smaller frame limit.
#[tokio::test]
async fn unauthenticated_caller_cannot_send_large_frames() {
    let secure = SecureNode::start().await;
    // Returns whether the frame was answered. A closed connection is not an answer.
    let send = async |token: Option<&str>| -> io::Result<bool> {
        let mut stream =
            secure.anonymous().credentials().connect(&secure.node.address, None, |_| Ok(())).await?;
        stream.write_all(GREETING).await?;
        let mut bytes = BytesMut::new();
        let operation = |id, kind| v1::Operation { id, kind: Some(kind) };
        if let Some(token) = token {
            let request = v1::AuthenticateRequest { token: token.to_owned() };
            let kind = v1::operation::Kind::Authenticate(request);
            frame::encode(&v1::ClientFrame { operations: vec![operation(1, kind)] }, &mut bytes);
        }
        let sessions = (0..4_000).map(|number| format!("{number:032x}")).collect();
        let kind = v1::operation::Kind::KeepAlive(v1::KeepAliveAll { sessions });
        frame::encode(&v1::ClientFrame { operations: vec![operation(2, kind)] }, &mut bytes);
        stream.write_all(&bytes).await?;
        stream.flush().await?;
        let mut greeting = [0; GREETING.len()];
        stream.read_exact(&mut greeting).await?;
        let mut buffer = BytesMut::new();
        loop {
            while let Some(frame) = frame::decode::<v1::ServerFrame>(&mut buffer, 1 << 20).unwrap() {
                if frame.answers.iter().any(|answer| answer.id == 2) {
                    return Ok(true);
                }
            }
            let mut more = [0; 4096];
            match tokio::time::timeout(LONG, stream.read(&mut more)).await.expect("an answer or an end")? {
                0 => return Ok(false),
                count => buffer.extend_from_slice(&more[..count]),
            }
        }
    };
    assert!(!send(None).await.unwrap_or(false), "a large frame of an unauthenticated caller");
    assert!(send(Some(crate::fixture::ROOT_TOKEN)).await.unwrap(), "the same of an authenticated caller");
}

/// Replaying all bytes of a client has no effect: TLS rejects them.
#[tokio::test]
async fn recorded_connection_cannot_be_replayed() {
    let secure = SecureNode::start().await;
    let port = free_address(7500);
    // The proxy has the node's address for the certificate's sake: only the port differs.
    let host = secure.node.address.rsplit_once(':').unwrap().0.to_owned();
    let listener = TcpListener::bind(format!("{host}:{}", port.rsplit_once(':').unwrap().1)).await.unwrap();
    let proxy = listener.local_addr().unwrap().to_string();
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let (record, node) = (recorded.clone(), secure.node.address.clone());
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_node, mut to_node) = TcpStream::connect(&node).await.unwrap().into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_node, &mut to_client).await });
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
            record.lock().unwrap().extend_from_slice(&bytes[..count]);
            to_node.write_all(&bytes[..count]).await.unwrap();
        }
    });
    let mut caller = secure.root();
    caller.address = proxy;
    caller.post("/v1/value/put", serde_json::json!({"key": "counter", "value": "1"})).await.ok();
    let version = secure.root().read("/v1/value?key=counter").await.ok()["version"].as_u64();
    assert_eq!(version, Some(1));
    let again = recorded.lock().unwrap().clone();
    assert!(again.len() > 500, "nothing was recorded");
    let mut stream = TcpStream::connect(&secure.node.address).await.unwrap();
    stream.write_all(&again).await.unwrap();
    let mut rest = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut rest)).await;
    assert!(end.is_ok(), "the node did not close the connection");
    assert_eq!(secure.root().read("/v1/value?key=counter").await.ok()["version"].as_u64(), version);
}
