use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Extension;
use axum::http::{Method, Request, StatusCode};
use axum::routing::get;
use futures_util::stream;
use lockkeeper::gates::http::{
    FenceLayer, Fences, FileTokens, HEADER, MemoryTokens, PostgresTokens, RedisTokens, Tokens, header_value,
    probe,
};
use lockkeeper::{Durations, Error, Token};
use tokio::sync::{Notify, mpsc};

use crate::servers::Site;
use crate::writers::{assert_fenced, write_at_once};

/// A service that records the tokens of its writes, and fails if two tokens write concurrently.
#[derive(Clone, Default)]
struct Ledger {
    history: Arc<Mutex<Vec<u64>>>,
    at_work: Arc<Mutex<Vec<Token>>>,
}

impl Ledger {
    async fn write(self, token: Token) {
        {
            let mut at_work = self.at_work.lock().unwrap();
            assert!(
                at_work.iter().all(|other| *other == token),
                "{token} is written while {at_work:?} are in flight"
            );
            at_work.push(token);
        }
        // Long enough for others to interleave, if they could.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        self.history.lock().unwrap().push(token.0);
        let mut at_work = self.at_work.lock().unwrap();
        let index = at_work.iter().position(|other| *other == token).unwrap();
        at_work.swap_remove(index);
    }

    fn router(&self) -> Router {
        let ledger = self.clone();
        let write = async move |Extension(fences): Extension<Fences>, _body: Bytes| {
            ledger.write(fences.token("ledger").unwrap()).await;
        };
        Router::new().route("/", get(async || "read").put(write))
    }
}

pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

async fn put(client: &reqwest::Client, address: SocketAddr, lock: &str, token: Token) -> reqwest::Response {
    let request = client.put(format!("http://{address}/")).body("data");
    request.header(HEADER, header_value(lock, token)).send().await.unwrap()
}

/// Converts the response to the library's error.
async fn outcome(response: reqwest::Response) -> Result<(), Error> {
    if response.status().is_success() {
        return Ok(());
    }
    let (status, body) = (response.status(), response.bytes().await.unwrap());
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status.as_u16(), &body["error"]["code"]), (412, &"stale_token".into()), "{body}");
    Err(Error::StaleToken { last_token: Token(body["error"]["last_token"].as_u64().unwrap()) })
}

async fn thirty_two_writers(tokens: impl Tokens) {
    let ledger = Ledger::default();
    let address = serve(ledger.router().layer(FenceLayer::new(tokens))).await;
    let client = reqwest::Client::new();
    let passed = write_at_once(|_, token| {
        let client = client.clone();
        async move { outcome(put(&client, address, "ledger", token).await).await }
    })
    .await;
    assert_fenced(passed, &ledger.history.lock().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_are_fenced_with_every_token_store() {
    thirty_two_writers(MemoryTokens::new()).await;
    let folder = tempfile::tempdir().unwrap();
    thirty_two_writers(FileTokens::open(folder.path()).unwrap()).await;
    let postgres = crate::servers::postgres::Postgres::start();
    thirty_two_writers(PostgresTokens::connect(&crate::postgres::url(&postgres)).await.unwrap()).await;
    let redis = crate::servers::redis::Redis::start();
    thirty_two_writers(RedisTokens::new(crate::redis::connect(&redis.url()).await)).await;
}

#[tokio::test]
async fn postgres_tokens_survive_a_restart_and_reconnect() {
    let mut postgres = crate::servers::postgres::Postgres::start();
    let url = crate::postgres::url(&postgres);
    let (own, borrowed) = (
        PostgresTokens::connect(&url).await.unwrap(),
        PostgresTokens::open(crate::postgres::connect(&url).await).await.unwrap(),
    );
    own.raise("a", Token(5)).await.unwrap();
    postgres.kill();
    assert_eq!(own.raise("a", Token(6)).await.unwrap_err().code(), "unavailable");
    postgres.restart();
    assert_eq!(own.raise("a", Token(4)).await, Err(Error::StaleToken { last_token: Token(5) }));
    assert_eq!(borrowed.raise("a", Token(6)).await.unwrap_err().code(), "unavailable");
    own.raise("a", Token(6)).await.unwrap();
}

#[tokio::test]
async fn request_under_several_locks_is_checked_for_all_of_them() {
    let layer = FenceLayer::new(MemoryTokens::new());
    let address = serve(Router::new().route("/", get(async || ()).put(async || ())).layer(layer)).await;
    let client = reqwest::Client::new();
    for (a, b, status) in [(5, 5, 200), (6, 4, 412), (5, 6, 412), (6, 6, 200)] {
        let request = client.put(format!("http://{address}/"));
        let request =
            request.header(HEADER, header_value("a", Token(a))).header(HEADER, header_value("b", Token(b)));
        assert_eq!(request.send().await.unwrap().status(), status, "{a} {b}");
    }
}

#[tokio::test]
async fn clients_without_a_token_may_read_but_not_write() {
    let layer = || FenceLayer::new(MemoryTokens::new());
    let client = reqwest::Client::new();
    let strict =
        serve(Router::new().route("/", get(async || ()).put(async || ())).layer(layer().only_lock("ledger")))
            .await;
    assert_eq!(client.get(format!("http://{strict}/")).send().await.unwrap().status(), 200);
    assert_eq!(client.put(format!("http://{strict}/")).send().await.unwrap().status(), 428);
    assert_eq!(put(&client, strict, "other", Token(1)).await.status(), 400);
    assert_eq!(put(&client, strict, "ledger", Token(1)).await.status(), 200);
    let nonsense = client.put(format!("http://{strict}/")).header(HEADER, "nonsense").send().await.unwrap();
    assert_eq!(nonsense.status(), 400);
    assert!(nonsense.text().await.unwrap().contains("lock=NAME;token=NUMBER"));
    // A read under a token refuses older tokens from then on.
    let read = client.get(format!("http://{strict}/")).header(HEADER, "lk1:5:x:ledger").send().await.unwrap();
    assert_eq!(read.status(), 200);
    assert_eq!(put(&client, strict, "ledger", Token(4)).await.status(), 412);

    let lenient =
        serve(Router::new().route("/", get(async || ()).put(async || ())).layer(layer().allow_unfenced()))
            .await;
    assert_eq!(client.put(format!("http://{lenient}/")).send().await.unwrap().status(), 200);
    assert_eq!(put(&client, lenient, "ledger", Token(2)).await.status(), 200);
    assert_eq!(put(&client, lenient, "ledger", Token(1)).await.status(), 412);
}

#[tokio::test]
async fn probe_passes_with_the_layer_and_fails_without() {
    let router = || Router::new().route("/", get(async || "read"));
    let uri = axum::http::Uri::from_static("/");
    let mut fenced = router().layer(FenceLayer::new(MemoryTokens::new()).only_lock("ledger"));
    probe::<_, Body, _>(&mut fenced, &uri).await.unwrap();
    let mut open = router();
    assert_eq!(probe::<_, Body, _>(&mut open, &uri).await.unwrap_err().code(), "fatal");
}

/// A handler that reports its start; with token 1 it finishes only when notified.
fn slow(began: mpsc::Sender<Token>, go_on: Arc<Notify>) -> Router {
    let write = async move |Extension(fences): Extension<Fences>, body: Body| {
        let token = fences.token("ledger").unwrap();
        began.send(token).await.unwrap();
        if axum::body::to_bytes(body, 1 << 20).await.is_err() {
            return StatusCode::BAD_REQUEST;
        }
        if token == Token(1) {
            go_on.notified().await;
        }
        StatusCode::OK
    };
    Router::new().route("/", axum::routing::put(write))
}

#[tokio::test]
async fn newer_request_starts_after_the_older_one_has_ended() {
    let (began, mut begins) = mpsc::channel(8);
    let go_on = Arc::new(Notify::new());
    let layer = FenceLayer::new(MemoryTokens::new()).wait_for_older(50.millis());
    let address = serve(slow(began, Arc::clone(&go_on)).layer(layer)).await;
    let client = reqwest::Client::new();
    let older = tokio::spawn({
        let client = client.clone();
        async move { put(&client, address, "ledger", Token(1)).await.status() }
    });
    assert_eq!(begins.recv().await, Some(Token(1)));
    // The older request is still in flight: the newer one is asked to retry, but its token counts already.
    let waiting = put(&client, address, "ledger", Token(2)).await;
    assert_eq!(waiting.status(), 503);
    assert_eq!(waiting.headers()["retry-after"], "1");
    assert_eq!(put(&client, address, "ledger", Token(1)).await.status(), 412);
    // The disconnect of its client does not end the older request.
    older.abort();
    assert_eq!(put(&client, address, "ledger", Token(2)).await.status(), 503);
    go_on.notify_one();
    loop {
        match put(&client, address, "ledger", Token(2)).await.status() {
            StatusCode::SERVICE_UNAVAILABLE => {}
            status => break assert_eq!(status, 200),
        }
    }
    assert_eq!(begins.recv().await, Some(Token(2)));
}

#[tokio::test]
async fn unfinished_body_does_not_block_newer_requests() {
    let (began, mut begins) = mpsc::channel(8);
    let address = serve(
        slow(began, Arc::default()).layer(FenceLayer::new(MemoryTokens::new()).wait_for_older(2.secs())),
    )
    .await;
    // An old holder, stopped in the middle of an upload.
    let mut half = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = "PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\nlockkeeper-fence: lock=ledger;token=3\r\n\r\nhalf";
    tokio::io::AsyncWriteExt::write_all(&mut half, head.as_bytes()).await.unwrap();
    assert_eq!(begins.recv().await, Some(Token(3)));
    let client = reqwest::Client::new();
    assert_eq!(put(&client, address, "ledger", Token(4)).await.status(), 200);
    assert_eq!(begins.recv().await, Some(Token(4)));
    let mut answer = String::new();
    let mut reader = tokio::io::BufReader::new(half);
    tokio::io::AsyncBufReadExt::read_line(&mut reader, &mut answer).await.unwrap();
    assert!(answer.contains("412"), "{answer}");
}

#[tokio::test]
async fn bodies_are_streamed() {
    let echo = async |request: Request<Body>| request.into_body();
    let router = Router::new().route("/", axum::routing::post(echo));
    let mut service = router.layer(FenceLayer::new(MemoryTokens::new()));
    let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    let parts = stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    let mut request = Request::new(Body::from_stream(Box::pin(parts)));
    *request.method_mut() = Method::POST;
    request.headers_mut().insert(HEADER, header_value("a", Token(1)));
    let answer = tower_service::Service::call(&mut service, request).await.unwrap();
    let mut body = answer.into_body().into_data_stream();
    // Each part arrives before the next one is sent.
    for part in ["one", "two", "three"] {
        sender.send(Ok(part.into())).await.unwrap();
        let received = futures_util::StreamExt::next(&mut body).await.unwrap().unwrap();
        assert_eq!(received, part);
    }
    drop(sender);
    assert!(futures_util::StreamExt::next(&mut body).await.is_none());
}
