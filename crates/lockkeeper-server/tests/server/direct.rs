//! Frames directly on TCP: valid frames are answered, and malformed input does not harm the node.

use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_api::v1;
use lockkeeper_api::v1::{answer, operation};
use lockkeeper_net::frame::{self, GREETING, MEMBERS_GREETING};
use lockkeeper_server::{Node, NodeConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn start() -> (Node, std::net::SocketAddr) {
    let mut node = Node::start(NodeConfig::in_memory()).await.unwrap();
    let address = node.listen("127.0.0.1:0").await.unwrap();
    (node, address)
}

async fn greet(address: std::net::SocketAddr) -> TcpStream {
    greet_as(GREETING, address).await
}

async fn greet_as(protocol: &[u8; 8], address: std::net::SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(protocol).await.unwrap();
    let mut greeting = [0; 8];
    stream.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, protocol);
    stream
}

fn open_session() -> v1::ClientFrame {
    let kind = operation::Kind::OpenSession(v1::OpenSessionRequest { ttl_ms: 10_000, owner: "t".into() });
    v1::ClientFrame { operations: vec![v1::Operation { id: 7, kind: Some(kind) }] }
}

async fn answer(stream: &mut TcpStream) -> v1::ServerFrame {
    let mut buffer = BytesMut::new();
    loop {
        // The first frame is the welcome.
        if let Some(frame) = frame::decode::<v1::ServerFrame>(&mut buffer, 1 << 20).unwrap()
            && !frame.answers.is_empty()
        {
            return frame;
        }
        assert_ne!(stream.read_buf(&mut buffer).await.unwrap(), 0, "the node ended the connection");
    }
}

async fn works(address: std::net::SocketAddr) {
    let mut stream = greet(address).await;
    let mut bytes = BytesMut::new();
    frame::encode(&open_session(), &mut bytes);
    stream.write_all(&bytes).await.unwrap();
    let frame = answer(&mut stream).await;
    assert_eq!(frame.answers[0].id, 7);
    assert!(matches!(frame.answers[0].kind, Some(answer::Kind::OpenSession(_))));
}

/// Whether the node closes the connection instead of waiting for more.
async fn is_cut_off(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    match tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => error.kind() == std::io::ErrorKind::ConnectionReset,
        Err(_) => false,
    }
}

#[tokio::test(flavor = "current_thread")]
async fn greeting_and_frame_may_arrive_byte_by_byte() {
    let (node, address) = start().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut bytes = BytesMut::from(&GREETING[..]);
    frame::encode(&open_session(), &mut bytes);
    for byte in bytes {
        stream.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).await.unwrap();
    assert_eq!(answer(&mut stream).await.answers[0].id, 7);
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn malformed_frame_closes_only_its_connection() {
    let (node, address) = start().await;
    let too_long = [0xff; 8];
    let garbled = [0, 0, 0, 4, 0x0a, 0x7f, 1, 2];
    for (protocol, bytes) in [GREETING, MEMBERS_GREETING]
        .iter()
        .flat_map(|protocol| [(protocol, &too_long[..]), (protocol, &garbled[..])])
    {
        let mut stream = greet_as(protocol, address).await;
        stream.write_all(bytes).await.unwrap();
        assert!(is_cut_off(&mut stream).await, "{bytes:?}");
    }
    works(address).await;
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn random_bytes_do_not_hurt_the_node() {
    let (node, address) = start().await;
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..300 {
        let protocol = if round % 2 == 0 { GREETING } else { MEMBERS_GREETING };
        let mut stream = match round % 3 {
            0 => TcpStream::connect(address).await.unwrap(),
            _ => greet_as(protocol, address).await,
        };
        let mut bytes: Vec<u8> = (0..random() % 300).map(|_| random() as u8).collect();
        if round % 3 == 1 {
            // A frame of the right length with random content.
            let mut framed = (bytes.len() as u32).to_be_bytes().to_vec();
            framed.append(&mut bytes);
            bytes = framed;
        }
        // The node may close the connection in the middle of it.
        let _ = stream.write_all(&bytes).await;
        drop(stream);
    }
    works(address).await;
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn connections_end_with_the_node() {
    let (node, address) = start().await;
    let mut stream = greet(address).await;
    node.stop().await;
    assert!(is_cut_off(&mut stream).await);
    assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
}
