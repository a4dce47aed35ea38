//! Idle clients take the places of clients, and nobody else's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_net::frame::{GREETING, MEMBERS_GREETING};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::crowd::Plain;
use crate::harness::cell::Cell;
use crate::harness::{LONG, http, until};
use crate::stage::{Caller, Plan, Stage};
use crate::windows;

const PLACES: usize = 60;

/// Clients that have sent a frame and nothing more, until there is no place for another.
async fn idle_clients(address: &str) -> Vec<TcpStream> {
    let mut idle = Vec::new();
    loop {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The greeting and an empty frame.
        let sent = stream.write_all(&[&GREETING[..], &[0; 4]].concat()).await;
        if sent.is_err() || stream.read_exact(&mut [0; GREETING.len()]).await.is_err() {
            return idle;
        }
        idle.push(stream);
        assert!(idle.len() <= PLACES, "there is a bound");
    }
}

#[tokio::test]
async fn whoever_greets_and_says_nothing_is_cut_off() {
    let plain = Plain::start(&[]).await;
    let address = &plain.node.address;
    let began = Instant::now();
    let tries = [("a client", &GREETING[..]), ("a member", MEMBERS_GREETING), ("HTTP/2", PREFACE)];
    let all = tries.map(|(what, greeting)| async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(greeting).await.unwrap();
        let mut rest = Vec::new();
        let end = tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await;
        assert!(end.is_ok(), "{what}: it is still open");
    });
    futures_util::future::join_all(all).await;
    assert!(began.elapsed() > Duration::from_secs(9), "after {:?}, for another reason", began.elapsed());
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::test]
async fn a_full_node_answers_health_checks_and_says_why_it_serves_nobody_else() {
    let plain = Plain::start(&["--connections-max", "60"]).await;
    let address = &plain.node.address;
    let idle = idle_clients(address).await;
    for path in ["/livez", "/readyz"] {
        assert_eq!(http::get(address, path).await.unwrap().status, 200, "{path}");
    }
    let refused = http::get(address, "/v1/locks").await.unwrap();
    assert_eq!((refused.status, refused.code()), (429, "limit"));
    assert!(refused.body["error"]["message"].as_str().unwrap().contains("--connections-max"), "{refused:?}");
    drop(idle);
    until("a place again", async || {
        http::get(address, "/v1/locks").await.ok().filter(|answer| answer.status == 200)
    })
    .await;
}

#[tokio::test]
async fn a_full_node_serves_its_administrator() {
    let words = ["--connections-max".to_owned(), "60".to_owned()];
    let stage = Stage::with(Plan { root_token: true, words: words.to_vec(), ..Plan::default() }).await;
    let ci = stage.known("ci", "", &["acquire"]).await;
    let mut idle = Vec::new();
    for _ in 0..PLACES {
        let mut stream = ci.credentials().connect(&stage.node.address, None, |_| Ok(())).await.unwrap();
        stream.write_all(GREETING).await.unwrap();
        stream.flush().await.unwrap();
        if stream.read_exact(&mut [0; GREETING.len()]).await.is_err() {
            break;
        }
        idle.push(stream);
    }
    ci.read("/v1/locks").await.refused(429, "limit");
    stage.root().read("/v1/locks").await.ok();
}

/// Both followers are full: their leader still reaches them, and goes on leading.
#[tokio::test]
async fn idle_clients_do_not_depose_a_leader() {
    let mut cell = Cell::plan(3);
    let list = cell.list();
    let words = ["--cell", &list, "--connections-max", "60"];
    for id in 1..=3 {
        cell.spawn_with(id, &words);
    }
    let leader = cell.until_agreed().await;
    let term = cell.node(leader).leads().await;
    let mut idle = Vec::new();
    for follower in cell.others(leader) {
        idle.extend(idle_clients(&cell.node(follower).listens).await);
    }
    // Its connections are made anew when one of them is killed: the other two need each other.
    let [one, other] = cell.others(leader)[..] else { panic!("three nodes") };
    cell.kill(one);
    for _ in 0..20 {
        crate::harness::client::open_session(&cell, 10_000).await;
    }
    assert_eq!(cell.node(leader).leads().await, term, "the same leader in the same term");
    cell.kill(leader);
    cell.spawn_with(leader, &words);
    // Asked by a health check: one of them serves nothing else now.
    until("a leader again", async || {
        for id in [leader, other] {
            let ready = http::quick_get(&cell.node(id).listens, "/readyz?verbose").await;
            if ready.is_some_and(|ready| ready.body["checks"]["role"] == "leader") {
                return Some(());
            }
        }
        None
    })
    .await;
    drop(idle);
}

/// Claims to be a member, and again when the connection is closed.
async fn keep_claiming_to_be_a_member(address: String, number: usize, sent: Arc<AtomicUsize>) {
    let caller = Caller { address: address.clone(), ca: None, own: None, token: None };
    let join = windows::grpc_request(1, &caller, "/lockkeeper.peer.v1.Peer/Join", &[0; 5], true);
    let bytes = match number % 2 {
        0 => MEMBERS_GREETING.to_vec(),
        _ => [windows::preface(1 << 16), join].concat(),
    };
    loop {
        let Ok(mut stream) = TcpStream::connect(&address).await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        drop(stream.write_all(&bytes).await);
        sent.fetch_add(1, Ordering::Relaxed);
        drop(stream.read_to_end(&mut Vec::new()).await);
    }
}

/// More than there are places for members.
const MEMBER_CLAIMS: usize = 400;

#[tokio::test]
async fn strangers_do_not_take_the_places_of_members() {
    let mut cell = Cell::start(3).await;
    let leader = cell.leader().await;
    let [one, other] = cell.others(leader)[..] else { panic!("three nodes") };
    cell.kill(one);
    let sent = Arc::new(AtomicUsize::new(0));
    let mut strangers = tokio::task::JoinSet::new();
    for number in 0..2 * MEMBER_CLAIMS {
        let id = if number < MEMBER_CLAIMS { leader } else { other };
        let address = cell.node(id).listens.clone();
        strangers.spawn(keep_claiming_to_be_a_member(address, number, sent.clone()));
    }
    until("all strangers", async || (sent.load(Ordering::Relaxed) >= 2 * MEMBER_CLAIMS).then_some(())).await;
    // It needs connections to the other two, and they to it.
    cell.spawn(one);
    cell.until_agreed().await;
    cell.kill(leader);
    cell.leader().await;
}
