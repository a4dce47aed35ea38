//! A node with TLS and authentication, and callers with various credentials.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Command, Output};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use lockkeeper::{Keeper, KeeperBuilder};
use lockkeeper_net::credentials::Credentials;
use lockkeeper_net::net::Stream;
use lockkeeper_net::tls::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use crate::certificates::Authority;
use crate::harness::node::{Node, free_address, lockkeeper};
use crate::harness::{until, write_secret};

/// Variables with the credentials of a caller.
const ENVIRONMENT: [&str; 5] = [
    "LOCKKEEPER_CA",
    "LOCKKEEPER_CERT",
    "LOCKKEEPER_KEY",
    "LOCKKEEPER_AUTH_TOKEN",
    "LOCKKEEPER_AUTH_TOKEN_FILE",
];
pub const ROOT_TOKEN: &str = "the root token of the tests, long enough to be one";

/// A node with TLS, an authority of clients and a root token.
pub struct SecureNode {
    pub node: Node,
    pub nodes_ca: Authority,
    pub clients_ca: Authority,
    // Last: the process ends before its folder is removed.
    pub folder: TempDir,
}

/// Options of the node.
#[derive(Default)]
pub struct SecureNodeOptions {
    pub client_ca: bool,
    pub root_token: bool,
    pub words: Vec<String>,
}

impl SecureNode {
    /// Starts a node that accepts tokens and client certificates.
    pub async fn start() -> SecureNode {
        SecureNode::with(SecureNodeOptions {
            client_ca: true,
            root_token: true,
            ..SecureNodeOptions::default()
        })
        .await
    }

    pub async fn with(plan: SecureNodeOptions) -> SecureNode {
        let folder = tempfile::tempdir().unwrap();
        let nodes_ca = Authority::new(folder.path(), "nodes");
        let clients_ca = Authority::new(folder.path(), "clients");
        let address = free_address(7420);
        let own = nodes_ca.issue("node", &[&address]);
        let mut words = plan.words;
        let mut add_flag =
            |flag: &str, path: &PathBuf| words.extend([flag.to_owned(), path.display().to_string()]);
        add_flag("--tls-cert", &own.certificate);
        add_flag("--tls-key", &own.key);
        if plan.client_ca {
            add_flag("--client-ca", &clients_ca.file);
        }
        if plan.root_token {
            let file = folder.path().join("root.token");
            write_secret(&file, &format!("{ROOT_TOKEN}\n"));
            add_flag("--root-token-file", &file);
        }
        let mut node = Node::new(1, address.clone(), address, folder.path());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        node.spawn(&words);
        let mut secure = SecureNode { node, nodes_ca, clients_ca, folder };
        let probe = match plan.root_token {
            true => secure.root(),
            false => secure.certified("probe"),
        };
        until("the node to serve", async || {
            assert!(!secure.node.has_ended(), "the node has ended: {}", secure.node.log_text());
            probe.get("/readyz").await.ok().filter(|(status, _)| *status == 200)
        })
        .await;
        secure
    }

    pub fn url(&self) -> String {
        format!("lockkeeper://{}", self.node.address)
    }

    /// A caller without credentials.
    pub fn anonymous(&self) -> Caller {
        Caller {
            address: self.node.address.clone(),
            ca: Some(self.nodes_ca.file.clone()),
            own: None,
            token: None,
        }
    }

    pub fn root(&self) -> Caller {
        self.anonymous().token(ROOT_TOKEN)
    }

    /// A caller with a client certificate.
    pub fn certified(&self, name: &str) -> Caller {
        Caller { own: Some(self.clients_ca.issue(name, &[])), ..self.anonymous() }
    }

    /// A caller with an access token and these rights.
    pub async fn caller_with(&self, identity: &str, prefix: &str, rights: &[&str]) -> Caller {
        self.grant(identity, prefix, rights).await;
        let made = self.root().post("/v1/access/token/create", json!({"identity": identity})).await;
        self.anonymous().token(made.ok()["token"].as_str().unwrap())
    }

    /// The number of refusals for a reason, from the metrics.
    pub async fn refusal_count(&self, reason: &str) -> f64 {
        let metrics = self.root().read("/metrics").await.ok();
        let start = format!("lockkeeper_turned_away_total{{reason=\"{reason}\"");
        let text = metrics.as_str().unwrap();
        let line = text.lines().find(|line| line.starts_with(&start));
        line.map_or(0.0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
    }

    pub async fn grant(&self, identity: &str, prefix: &str, rights: &[&str]) {
        let rule = json!({"identity": identity, "prefix": prefix, "rights": rights});
        self.root().post("/v1/access/grant", rule).await.ok();
    }
}

/// Opens the connections of a gRPC client with a caller's credentials.
#[derive(Clone)]
struct Dialer(Credentials);

impl Service<Uri> for Dialer {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let credentials = self.0.clone();
        Box::pin(async move {
            let address = target.authority().unwrap().to_string();
            credentials.connect(&address, Some("h2"), |_| Ok(())).await.map(TokioIo::new)
        })
    }
}

/// A caller with its credentials.
#[derive(Clone)]
pub struct Caller {
    pub address: String,
    pub ca: Option<PathBuf>,
    pub own: Option<KeyPair>,
    pub token: Option<String>,
}

/// Status and body of a response.
#[derive(Debug)]
pub struct CallResult(pub u16, pub Value);

impl CallResult {
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.0, 200, "{}", self.1);
        self.1
    }

    #[track_caller]
    pub fn assert_refused(self, status: u16, code: &str) -> Value {
        assert_eq!((self.0, self.1["error"]["code"].as_str()), (status, Some(code)), "{}", self.1);
        self.1
    }
}

impl Caller {
    pub fn token(mut self, token: &str) -> Caller {
        self.token = Some(token.to_owned());
        self
    }

    pub fn credentials(&self) -> Credentials {
        let credentials = Credentials::default();
        match &self.ca {
            Some(ca) => credentials.tls(ca, self.own.clone()).unwrap(),
            None => credentials,
        }
    }

    /// An HTTP/2 channel with the caller's credentials.
    pub async fn channel(&self) -> Result<Channel, String> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        let channel = endpoint.connect_with_connector(Dialer(self.credentials())).await;
        channel.map_err(|error| format!("{error:?}"))
    }

    pub async fn get(&self, path: &str) -> io::Result<(u16, Value)> {
        self.call("GET", path, "").await
    }

    /// A GET that must be answered.
    pub async fn read(&self, path: &str) -> CallResult {
        let (status, body) = self.get(path).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        CallResult(status, body)
    }

    /// A POST that must be answered.
    pub async fn post(&self, path: &str, body: Value) -> CallResult {
        let asked = self.call("POST", path, &body.to_string()).await;
        let (status, body) = asked.unwrap_or_else(|error| panic!("{path}: {error}"));
        CallResult(status, body)
    }

    pub async fn call(&self, method: &str, path: &str, body: &str) -> io::Result<(u16, Value)> {
        let mut stream = self.credentials().connect(&self.address, None, |_| Ok(())).await?;
        let token =
            self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}content-type: \
             application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        // A connection closed without TLS close_notify is fine if there is an answer.
        match read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))? {
            Err(error) if answer.is_empty() => return Err(error),
            _ => {}
        }
        let text = String::from_utf8_lossy(&answer).into_owned();
        let status =
            text.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status, serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned()))))
    }

    pub async fn session(&self) -> String {
        let opened = self.post("/v1/session/open", json!({"ttl_ms": 60_000})).await.ok();
        opened["session"].as_str().unwrap().to_owned()
    }

    pub async fn acquire(&self, session: &str, lock: &str) -> CallResult {
        self.post("/v1/lock/acquire", json!({"session": session, "lock": lock})).await
    }

    pub fn builder(&self) -> KeeperBuilder {
        let mut builder = Keeper::builder();
        if let Some(ca) = &self.ca {
            builder = builder.tls_ca(ca);
        }
        if let Some(own) = &self.own {
            builder = builder.tls_certificate(&own.certificate, &own.key);
        }
        match &self.token {
            Some(token) => builder.access_token(token),
            None => builder,
        }
    }

    pub async fn keeper(&self) -> Result<Keeper, lockkeeper::Error> {
        self.builder().connect(&format!("lockkeeper://{}", self.address)).await
    }

    /// The CLI with this caller's credentials.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = lockkeeper();
        for name in ENVIRONMENT {
            command.env_remove(name);
        }
        command.args(words).env("LOCKKEEPER_ENGINE", format!("lockkeeper://{}", self.address));
        if let Some(ca) = &self.ca {
            command.env("LOCKKEEPER_CA", ca);
        }
        if let Some(own) = &self.own {
            command.env("LOCKKEEPER_CERT", &own.certificate).env("LOCKKEEPER_KEY", &own.key);
        }
        if let Some(token) = &self.token {
            command.env("LOCKKEEPER_AUTH_TOKEN", token);
        }
        command
    }

    pub async fn cli(&self, words: &[&str]) -> Output {
        let mut command = tokio::process::Command::from(self.command(words));
        command.output().await.expect("setpriv (util-linux) starts the binary")
    }
}
