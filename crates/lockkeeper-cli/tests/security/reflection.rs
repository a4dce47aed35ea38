//! Callers of gRPC reflection, which needs no authentication, that do not read its answers.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::adversary::other_services::Question;
use crate::before_auth::secured;
use crate::connections::TestNode;
use crate::fixture::Caller;
use crate::harness::{LONG, http};
use crate::http2;

const PATH: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const CONNECTIONS: usize = 60;
/// Streams of each connection, as many as the node accepts.
const STREAMS: usize = 200;
/// Questions on each stream. All of them fit into the window of the connection.
const QUESTIONS: usize = 6;
/// Maximum memory growth for all connections, in MiB. Unlimited, each connection takes 30 MB.
const GROWTH_MAX: u64 = 250;
/// How long a client may leave answers unread.
const STALLED_FOR: Duration = Duration::from_secs(30);

/// Starts many streams with questions whose answers are large.
pub async fn ask(stream: &mut TcpStream, caller: &Caller) {
    let question = Question { file_containing_symbol: "lockkeeper.v1.Lockkeeper".into() };
    let questions = http2::grpc_message(&question.encode_to_vec()).repeat(QUESTIONS);
    let calls = (1..).step_by(2).take(STREAMS);
    let calls = calls.flat_map(|id| http2::grpc_request(id, caller, PATH, &questions, false));
    // A closed connection has sent enough.
    let _ = stream.write_all(&calls.collect::<Vec<u8>>()).await;
}

/// Opens connections that ask and give this window to the answers. Checks the memory of the node.
async fn connect_and_ask(plain: &TestNode, window: u32) -> Vec<TcpStream> {
    let caller = http2::open(&plain.node.address);
    let before = plain.memory_mib();
    let open = join_all((0..CONNECTIONS).map(|_| async {
        let mut stream = http2::connect(&caller.address, window).await;
        ask(&mut stream, &caller).await;
        stream
    }))
    .await;
    let mut peak = 0;
    for _ in 0..20 {
        assert_eq!(http::get(&plain.node.address, "/livez").await.unwrap().status, 200);
        peak = peak.max(plain.memory_mib());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("{before} MiB before, {peak} MiB with {CONNECTIONS} connections and windows of {window}");
    assert!(peak < before + GROWTH_MAX, "{before} MiB before, {peak} MiB");
    open
}

#[tokio::test]
async fn unauthenticated_callers_of_reflection_do_not_fill_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let plain = secured(folder.path()).await;
    for window in [0, 1] {
        let open = connect_and_ask(&plain, window).await;
        let ends = join_all(open.into_iter().map(|mut stream| async move {
            let mut rest = Vec::new();
            tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await
        }));
        assert!(ends.await.iter().all(Result::is_ok), "some connections are still open");
    }
}

/// Without authentication, connections last, unless their answers are left unread.
#[tokio::test]
async fn unread_answers_of_reflection_close_their_connection() {
    let plain = TestNode::start(&[]).await;
    let began = Instant::now();
    let open = connect_and_ask(&plain, 0).await;
    let ends = join_all(open.into_iter().map(|mut stream| async move {
        tokio::time::timeout(STALLED_FOR + LONG, http2::leave_unread(&mut stream)).await
    }));
    assert!(ends.await.iter().all(Result::is_ok), "some connections are still open");
    let took = began.elapsed();
    println!("the last connection was closed after {took:?}");
    assert!(took + Duration::from_secs(1) > STALLED_FOR, "closed for another reason after {took:?}");
    plain.assert_works().await;
}

/// A client that reads gets all its answers.
#[tokio::test]
async fn reflection_answers_questions_one_after_the_other() {
    const ROUNDS: usize = 20;
    let plain = TestNode::start(&[]).await;
    let channel = http2::open(&plain.node.address).channel().await.unwrap();
    for _ in 0..ROUNDS {
        crate::adversary::other_services::reflect(channel.clone()).await.unwrap();
    }
}
