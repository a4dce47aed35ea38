//! Forwarded requests and answers.

use std::convert::Infallible;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Method, Request};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::fixture::{Answer, Arrived, Proxy, client, recorder, serve};
use crate::support::text;

#[tokio::test]
async fn requests_and_answers_are_forwarded_unchanged() {
    let arrived = Arrived::default();
    let upstream = serve(recorder(&arrived)).await;
    let proxy = Proxy::start(&format!("http://{upstream}/base/"), &[]);
    let answer = proxy.put("/a%20b?c=d", "lock=a;token=1", "data").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "from upstream"));
    assert_eq!(answer.headers["x-upstream"], "yes");
    assert_eq!(answer.headers["x-seen-for"], "127.0.0.1");
    assert_eq!(answer.headers["x-seen-host"], proxy.address);
    let expected =
        (Method::PUT, "/base/a%20b?c=d".to_owned(), "lock=a;token=1".to_owned(), "data".to_owned());
    assert_eq!(*arrived.lock().unwrap(), [expected]);
    // Errors of the upstream are its own.
    let proxy = Proxy::start(&format!("http://{upstream}"), &[]);
    for status in [404, 500, 503] {
        let answer = proxy.put(&format!("/{status}"), "lock=a;token=1", "").await;
        assert_eq!((answer.status, answer.body.as_str()), (status, "from upstream"));
    }
}

#[tokio::test]
async fn missing_answer_and_unreachable_upstream_are_distinguished() {
    let unreachable = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = Proxy::start(&format!("http://{unreachable}"), &[]);
    let answer = proxy.put("/", "lock=a;token=1", "data").await;
    assert_eq!((answer.status, &answer.error()["code"]), (502, &"unavailable".into()), "{answer:?}");
    assert_eq!(answer.error()["may_have_happened"], false);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(&format!("http://{}", listener.local_addr().unwrap()), &[]);
    let (answer, ()) = tokio::join!(proxy.put("/", "lock=a;token=1", "data"), async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 64];
        stream.read_exact(&mut bytes).await.unwrap();
    });
    assert_eq!(answer.status, 502);
    assert_eq!(answer.error()["may_have_happened"], true);
}

/// Streams parts of a body one by one in both directions, and trailers.
async fn stream_parts(http2: bool) {
    let echo = async |request: Request<Body>| {
        assert_eq!(request.version(), axum::http::Version::HTTP_2);
        request.into_body()
    };
    let upstream = serve(Router::new().fallback(echo)).await;
    let proxy = Proxy::start(&format!("http://{upstream}"), &["--upstream-http2"]);
    let (sender, receiver) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
    let parts =
        futures_util::stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    let request = proxy.request(Method::POST, "/", "lock=a;token=1").header("trailer", "x-sum");
    let request = request.body(Body::new(StreamBody::new(Box::pin(parts)))).unwrap();
    sender.send(Ok(Frame::data("one".into()))).await.unwrap();
    let mut answer = client(http2).request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut next = "one";
    for following in ["two", "three", ""] {
        let came = answer.body_mut().frame().await.unwrap().unwrap();
        assert_eq!(came.data_ref().unwrap(), next);
        next = following;
        if !following.is_empty() {
            sender.send(Ok(Frame::data(following.into()))).await.unwrap();
        }
    }
    let sum = axum::http::HeaderMap::from_iter([("x-sum".parse().unwrap(), "11".parse().unwrap())]);
    sender.send(Ok(Frame::trailers(sum))).await.unwrap();
    drop(sender);
    if http2 {
        let trailers = answer.body_mut().frame().await.unwrap().unwrap();
        assert_eq!(trailers.trailers_ref().unwrap()["x-sum"], "11");
    }
}

#[tokio::test]
async fn bodies_are_streamed_over_http_1() {
    stream_parts(false).await;
}

#[tokio::test]
async fn bodies_and_trailers_are_streamed_over_http_2() {
    stream_parts(true).await;
}

#[tokio::test]
async fn sigterm_waits_for_requests_in_flight() {
    let (began, mut begins) = mpsc::channel(1);
    let resume = std::sync::Arc::new(tokio::sync::Notify::new());
    let wait = std::sync::Arc::clone(&resume);
    let slow = async move || {
        began.send(()).await.unwrap();
        wait.notified().await;
        "done"
    };
    let upstream = serve(Router::new().fallback(slow)).await;
    let mut proxy = Proxy::start(&format!("http://{upstream}"), &[]);
    let request = proxy.request(Method::PUT, "/", "lock=a;token=1").body(Body::empty()).unwrap();
    let answer = tokio::spawn(client(false).request(request));
    begins.recv().await.unwrap();
    proxy.process().signal(Signal::TERM);
    // Wait until it accepts no new connections.
    while tokio::net::TcpStream::connect(&proxy.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    resume.notify_one();
    assert_eq!(Answer::of(answer.await.unwrap().unwrap()).await.body, "done");
    assert_eq!(proxy.process().code(), 0);
}

#[tokio::test]
async fn invalid_configurations_and_connect_are_refused() {
    let proxy = Proxy::start("http://127.0.0.1:9", &[]);
    // A second proxy on the same folder is refused, because it would not see the requests of the first.
    let output = proxy.second().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("in use by another process"), "{}", text(&output.stderr));
    for (upstream, code, word) in
        [("https://127.0.0.1:9", 64, "tunnel"), ("nonsense", 64, "http://host:port")]
    {
        let mut command = crate::support::lockkeeper();
        let output = command
            .args(["proxy", "--upstream", upstream, "--fence-state"])
            .arg(proxy.state())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert!(text(&output.stderr).contains(word), "{}", text(&output.stderr));
    }
    // It is not a forward proxy.
    let mut stream = tokio::net::TcpStream::connect(&proxy.address).await.unwrap();
    stream
        .write_all(b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\nlockkeeper-fence: lock=a;token=1\r\n\r\n")
        .await
        .unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 501");
}
