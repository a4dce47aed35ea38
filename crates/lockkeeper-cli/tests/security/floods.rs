//! Floods of small HTTP/2 frames, each of which costs the sender nothing, and of TLS handshakes, which cost the node more than
//! other requests without credentials.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::connections::TestNode;
use crate::fixture::{Caller, SecureNode};
use crate::http2::{self, HEADERS, frame};

const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const FLOOD_FOR: Duration = Duration::from_secs(3);
/// Maximum memory growth, in MiB.
const GROWTH_MAX: u64 = 60;

/// Sends parts for a while. Returns whether the node closed the connection.
async fn flood(plain: &TestNode, mut part: impl FnMut(u32) -> Vec<u8>) -> bool {
    let stream = http2::connect(&plain.node.address, 1 << 16).await;
    let (mut reader, mut writer) = stream.into_split();
    let sends = async {
        for number in 0.. {
            if writer.write_all(&part(number)).await.is_err() {
                return true;
            }
        }
        false
    };
    let reads = async {
        let mut buffer = vec![0; 1 << 16];
        while reader.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
        true
    };
    let ended = tokio::time::timeout(FLOOD_FOR, async {
        tokio::select! {
            ended = sends => ended,
            ended = reads => ended,
        }
    });
    ended.await.unwrap_or(false)
}

#[tokio::test]
async fn frame_floods_close_only_their_own_connection() {
    let plain = TestNode::start(&[]).await;
    let caller = Caller { address: plain.node.address.clone(), ca: None, own: None, token: None };
    let before = plain.memory_mib();
    let get = http2::head("GET", &caller, "/v1/locks");
    // Rapid reset (CVE-2023-44487).
    let resets = flood(&plain, |number| {
        let id = 2 * number + 1;
        [frame(HEADERS, 5, id, &get), frame(RST_STREAM, 0, id, &[0, 0, 0, 8])].concat()
    });
    assert!(resets.await, "rapid resets are not endless");
    // Endless CONTINUATION frames (CVE-2024-27316).
    let begins = flood(&plain, |number| match number {
        0 => frame(HEADERS, 0, 1, &get),
        _ => frame(CONTINUATION, 0, 1, &http2::header("x-flood", &"f".repeat(100)).repeat(100)),
    });
    assert!(begins.await, "headers are not endless");
    // HPACK bomb: one header of 4 KiB that is referenced repeatedly.
    let first = [&[0x40, 1, b'x', 0x7f, 0x81, 0x1f][..], &[b'f'; 4096]].concat();
    let bomb = [&first[..], &vec![0xbe; 12_000]].concat();
    let bombs =
        flood(&plain, |number| frame(HEADERS, END_HEADERS | 1, 2 * number + 1, &[&get[..], &bomb].concat()));
    println!("header bombs: closed {}", bombs.await);
    for (what, kind, payload) in [("pings", PING, vec![7; 8]), ("settings", SETTINGS, Vec::new())] {
        println!("{what}: closed {}", flood(&plain, |_| frame(kind, 0, 0, &payload).repeat(100)).await);
        let now = plain.memory_mib();
        assert!(now < before + GROWTH_MAX, "{what}: {before} MiB before, {now} MiB");
    }
    plain.assert_works().await;
}

/// Handshakes of others do not stop an authenticated client, whose new connections also need them.
#[tokio::test]
async fn handshake_flood_delays_others_little() {
    const FLOODING: usize = 8;
    const WITHIN: Duration = Duration::from_secs(5);
    let secure = SecureNode::start().await;
    let (root, session) = (secure.root(), secure.root().session().await);
    let stop = Instant::now() + FLOOD_FOR;
    let floods = join_all((0..FLOODING).map(|_| async {
        let (credentials, mut count) = (secure.anonymous().credentials(), 0);
        while Instant::now() < stop {
            let connected = credentials.connect(&secure.node.address, None, |_| Ok(())).await;
            count += usize::from(connected.is_ok());
        }
        count
    }));
    let renewals = async {
        let (mut slowest, mut count) = (Duration::ZERO, 0);
        while Instant::now() < stop {
            let began = Instant::now();
            root.post("/v1/session/keepalive", json!({"session": session})).await.ok();
            slowest = slowest.max(began.elapsed());
            count += 1;
        }
        (slowest, count)
    };
    let (handshakes, (slowest, count)) = tokio::join!(floods, renewals);
    let handshakes: usize = handshakes.iter().sum();
    println!("{handshakes} handshakes; the slowest of {count} renewals took {slowest:?}");
    assert!(handshakes > 50 && count > 5, "{handshakes} handshakes, {count} renewals");
    assert!(slowest < WITHIN, "a renewal took {slowest:?}");
}
