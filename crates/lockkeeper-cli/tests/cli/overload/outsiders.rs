//! Clients without our library in the middle of the storm: plain HTTP and unary gRPC.

use std::future::Future;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockkeeper_api::v1;
use lockkeeper_api::v1::lockkeeper_client::LockkeeperClient;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::support::LONG;

/// Concurrent requests: some of them find room in the queue.
const AT_ONCE: usize = 8;
/// The documented range of the retry hint.
const RETRY_AFTER_MS: std::ops::RangeInclusive<u64> = 200..=5_000;
/// Delay of a renewal beyond the TTL. A node that is not overloaded would have expired the session.
const OVERDUE: Duration = Duration::from_millis(500);
const TTL: Duration = Duration::from_secs(1);

/// Posts over HTTP. Returns status, head and body.
async fn post(address: &str, path: &str, body: &Value) -> (u16, String, Value) {
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    tokio::time::timeout(LONG, stream.read_to_string(&mut text)).await.expect("an answer").unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), serde_json::from_str(body).unwrap())
}

/// Sends concurrent requests until one of them is refused.
async fn until_refused<T, F: Future<Output = Option<T>>>(what: &str, ask: impl Fn() -> F) -> T {
    let began = Instant::now();
    loop {
        if let Some(refused) = join_all((0..AT_ONCE).map(|_| ask())).await.into_iter().flatten().next() {
            return refused;
        }
        assert!(began.elapsed() < LONG, "no request is refused over {what}");
    }
}

/// Over HTTP: 429, with the retry hint in the header and in the body.
pub(super) async fn refused_over_http(address: &str, session: &str) {
    let body = json!({"session": session, "lock": "over-http"});
    let (head, error) = until_refused("HTTP", || async {
        let (status, head, answer) = post(address, "/v1/lock/acquire", &body).await;
        (status == 429).then(|| (head, answer["error"].clone()))
    })
    .await;
    let ms = error["retry_after_ms"].as_u64().unwrap_or_default();
    assert_eq!(error["code"], "limit", "{error}");
    assert!(RETRY_AFTER_MS.contains(&ms), "{error}");
    let seconds = head.lines().find_map(|line| line.strip_prefix("retry-after: "));
    assert_eq!(seconds.and_then(|text| text.parse().ok()), Some(ms.div_ceil(1_000)), "{head}");
}

/// Over gRPC: RESOURCE_EXHAUSTED, with the retry hint in a header.
pub(super) async fn refused_over_grpc(address: &str, session: &str) {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let client = LockkeeperClient::new(channel);
    let acquire = |mut client: LockkeeperClient<Channel>| async move {
        let request = v1::AcquireRequest {
            session: session.to_owned(),
            lock: "over-grpc".to_owned(),
            ..Default::default()
        };
        let status = client.acquire(request).await.err()?;
        (status.code() == tonic::Code::ResourceExhausted).then_some(status)
    };
    let status = until_refused("gRPC", || acquire(client.clone())).await;
    let header = |name: &str| status.metadata().get(name).and_then(|value| value.to_str().ok());
    assert_eq!(header("lockkeeper-code"), Some("limit"), "{status:?}");
    let ms = header("lockkeeper-retry-after-ms").and_then(|text| text.parse::<u64>().ok());
    assert!(ms.is_some_and(|ms| RETRY_AFTER_MS.contains(&ms)), "{status:?}");
}

/// Renews a session late, as clients do under overload. Returns whether the renewal was accepted, as it is while leases are
/// extended.
pub(super) async fn renewed_too_late(address: &str) -> bool {
    let session = until_opened(address).await;
    let renew = async || post(address, "/v1/session/keepalive", &json!({"session": session})).await.0 == 200;
    if !renew().await {
        return false;
    }
    tokio::time::sleep(TTL + OVERDUE).await;
    renew().await
}

/// Opens a session. Most attempts are refused under overload.
async fn until_opened(address: &str) -> String {
    let body = json!({"ttl_ms": TTL.as_millis() as u64, "owner": "tardy"});
    let began = Instant::now();
    loop {
        let (status, _, answer) = post(address, "/v1/session/open", &body).await;
        if status == 200 {
            return answer["session"].as_str().unwrap().to_owned();
        }
        assert_eq!(status, 429, "{answer}");
        assert!(began.elapsed() < LONG, "no session was opened");
    }
}
