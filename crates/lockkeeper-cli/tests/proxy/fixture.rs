//! A proxy, the service behind it, and a client.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tempfile::TempDir;

use crate::support::{Process, lockkeeper};

/// Requests that reached the service: method, path, fence, body.
pub(crate) type Arrived = Arc<Mutex<Vec<(Method, String, String, String)>>>;

/// A service that records its requests. A path that is a number is answered with that status.
pub(crate) fn recorder(arrived: &Arrived) -> Router {
    let arrived = Arc::clone(arrived);
    Router::new().fallback(async move |request: Request<Body>| {
        let (parts, body) = request.into_parts();
        let Ok(body) = axum::body::to_bytes(body, 1 << 20).await else {
            return (StatusCode::BAD_REQUEST, HeaderMap::new(), "half a body");
        };
        let fence = parts.headers.get("lockkeeper-fence").map(|fence| fence.to_str().unwrap().to_owned());
        let path = parts.uri.path_and_query().unwrap().to_string();
        let status =
            path.trim_start_matches('/').parse().ok().and_then(|status| StatusCode::from_u16(status).ok());
        let body = String::from_utf8(body.to_vec()).unwrap();
        arrived.lock().unwrap().push((parts.method, path, fence.unwrap_or_default(), body));
        let mut headers = HeaderMap::new();
        headers.insert("x-upstream", "yes".parse().unwrap());
        for (seen, header) in [("x-seen-host", "x-forwarded-host"), ("x-seen-for", "x-forwarded-for")] {
            if let Some(value) = parts.headers.get(header) {
                headers.insert(seen, value.clone());
            }
        }
        (status.unwrap_or(StatusCode::OK), headers, "from upstream")
    })
}

pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

pub(crate) struct Proxy {
    process: Process,
    pub(crate) address: String,
    folder: TempDir,
    upstream: String,
}

fn command(upstream: &str, state: &PathBuf, more: &[&str]) -> Command {
    let mut command = lockkeeper();
    command
        .args(["proxy", "--listen", "127.0.0.1:0", "--upstream", upstream, "--fence-state"])
        .arg(state)
        .args(more);
    command
}

fn start(upstream: &str, state: &PathBuf, more: &[&str]) -> (Process, String) {
    let mut process =
        Process::spawn(command(upstream, state, more).stdout(Stdio::piped()).stderr(Stdio::null()));
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("lockkeeper proxy listens on ").and_then(|rest| rest.split(' ').next());
    (process, address.unwrap_or_else(|| panic!("{line:?}")).to_owned())
}

impl Proxy {
    pub(crate) fn start(upstream: &str, more: &[&str]) -> Proxy {
        let folder = tempfile::tempdir().unwrap();
        let (process, address) = start(upstream, &folder.path().join("fence"), more);
        Proxy { process, address, folder, upstream: upstream.to_owned() }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("fence")
    }

    /// The command of a second proxy on the same folder.
    pub(crate) fn second(&self) -> Command {
        command(&self.upstream, &self.state(), &[])
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Kills the proxy and starts a new one on the same folder.
    pub(crate) fn kill_and_restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        (self.process, self.address) = start(&self.upstream, &self.state(), &[]);
    }

    pub(crate) fn request(&self, method: Method, path: &str, fence: &str) -> axum::http::request::Builder {
        let request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if fence.is_empty() { request } else { request.header("lockkeeper-fence", fence) }
    }

    pub(crate) async fn put(&self, path: &str, fence: &str, body: &str) -> Answer {
        let request = self.request(Method::PUT, path, fence).body(Body::from(body.to_owned())).unwrap();
        Answer::of(client(false).request(request).await.unwrap()).await
    }
}

pub(crate) fn client(http2: bool) -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).http2_only(http2).build_http()
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) async fn of(response: axum::http::Response<hyper::body::Incoming>) -> Answer {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    /// The error of the contract.
    pub(crate) fn error(&self) -> serde_json::Value {
        serde_json::from_str::<serde_json::Value>(&self.body).unwrap()["error"].clone()
    }
}
