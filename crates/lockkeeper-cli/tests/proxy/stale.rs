//! Stale requests, which are not forwarded.

use axum::http::Method;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::fixture::{Answer, Arrived, Proxy, client, recorder, serve};
use crate::support::{Process, Server, until_line};

#[tokio::test]
async fn stale_token_never_reaches_the_upstream_even_after_a_kill() {
    let arrived = Arrived::default();
    let upstream = serve(recorder(&arrived)).await;
    let mut proxy = Proxy::start(&format!("http://{upstream}"), &[]);
    for (fence, status) in [
        ("lock=a;token=5", 200),
        ("lock=a;token=4", 412),
        ("lk1:5:x:a", 200),
        ("lock=b;token=1", 200),
        ("", 428),
        ("lock=a", 400),
    ] {
        assert_eq!(proxy.put("/", fence, "data").await.status, status, "{fence}");
    }
    assert_eq!(arrived.lock().unwrap().len(), 3);
    // Token 6 comes with a read: it counts too, and is on disk.
    let read = proxy.request(Method::GET, "/", "lock=a;token=6").body(axum::body::Body::empty()).unwrap();
    assert_eq!(Answer::of(client(false).request(read).await.unwrap()).await.status, 200);
    proxy.kill_and_restart();
    let stale = proxy.put("/", "lock=a;token=5", "data").await;
    assert_eq!((stale.status, &stale.error()["code"]), (412, &"stale_token".into()));
    assert_eq!(stale.error()["last_token"], 6);
    assert_eq!(proxy.put("/", "lock=a;token=6", "data").await.status, 200);
    assert_eq!(arrived.lock().unwrap().len(), 5);
}

#[tokio::test]
async fn lock_flag_and_allow_unfenced_are_respected() {
    let upstream = serve(recorder(&Arrived::default())).await;
    let url = format!("http://{upstream}");
    let strict = Proxy::start(&url, &["--lock", "shop"]);
    assert_eq!(strict.put("/", "lock=shop;token=1", "").await.status, 200);
    assert_eq!(strict.put("/", "lock=other;token=1", "").await.status, 400);
    let lenient = Proxy::start(&url, &["--allow-unfenced"]);
    assert_eq!(lenient.put("/", "", "").await.status, 200);
}

#[tokio::test]
async fn probe_detects_the_gate_through_the_proxy() {
    let upstream = serve(recorder(&Arrived::default())).await;
    let proxy = Proxy::start(&format!("http://{upstream}"), &["--lock", "shop"]);
    let uri = format!("http://{}/", proxy.address).parse().unwrap();
    lockkeeper::gates::http::probe(&mut client(false), &uri).await.unwrap();
    let around = format!("http://{upstream}/").parse().unwrap();
    let told = lockkeeper::gates::http::probe(&mut client(false), &around).await.unwrap_err();
    assert_eq!(told.code(), "fatal", "{told}");
}

#[tokio::test]
async fn upload_of_an_old_holder_is_aborted_by_a_newer_token() {
    let arrived = Arrived::default();
    let upstream = serve(recorder(&arrived)).await;
    let proxy = Proxy::start(&format!("http://{upstream}"), &["--wait-for-older", "2s"]);
    let mut stream = BufReader::new(tokio::net::TcpStream::connect(&proxy.address).await.unwrap());
    let head = "PUT /old HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\nexpect: 100-continue\r\nlockkeeper-fence: \
                lock=a;token=1\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    // The proxy asks for the body: the request is in flight.
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    assert!(line.contains("100"), "{line}");
    stream.write_all(b"half").await.unwrap();
    assert_eq!(proxy.put("/new", "lock=a;token=2", "data").await.status, 200);
    let paths = || arrived.lock().unwrap().iter().map(|(_, path, ..)| path.clone()).collect::<Vec<_>>();
    assert_eq!(paths(), ["/new"]);
    // The old holder gets the reason.
    while !line.starts_with("HTTP/1.1 412") {
        line.clear();
        assert!(stream.read_line(&mut line).await.unwrap() > 0, "no answer");
    }
    assert_eq!(paths(), ["/new"]);
}

/// End to end: a holder is paused for longer than its lease.
#[tokio::test]
async fn paused_holder_is_refused_after_its_lease() {
    let arrived = Arrived::default();
    let upstream = serve(recorder(&arrived)).await;
    let proxy = Proxy::start(&format!("http://{upstream}"), &[]);
    let cell = Server::start();
    let first = Process::spawn(&mut cell.run(
        "shop",
        &["--ttl", "300ms"],
        "echo $LOCKKEEPER_SEQUENCER > first; exec sleep 1000",
    ));
    let stale = until_line(&cell.path("first"));
    first.signal(Signal::STOP);
    // The second holder is granted only when the lease of the first has expired.
    let script = "echo $LOCKKEEPER_SEQUENCER > second";
    let status = tokio::task::spawn_blocking({
        let mut command = cell.run("shop", &["--wait", "30s"], script);
        move || command.status().unwrap()
    });
    assert!(status.await.unwrap().success());
    let fresh = until_line(&cell.path("second"));
    assert_eq!(proxy.put("/", &fresh, "new").await.status, 200);
    assert_eq!(proxy.put("/", &stale, "old").await.status, 412);
    first.signal(Signal::CONT);
    let bodies: Vec<_> = arrived.lock().unwrap().iter().map(|(.., body)| body.clone()).collect();
    assert_eq!(bodies, ["new"]);
}
