//! Runs the example clients of the book in other languages against real nodes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use lockkeeper_net::net::Stream;
use lockkeeper_net::tls::{ServerTls, ServerTlsFiles};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::certificates::Authority;
use crate::fixture::{Caller, ROOT_TOKEN, SecureNode};
use crate::harness::cell::Cell;
use crate::harness::skip::skip_or_fail;
use crate::harness::{until, write_secret};
use crate::support::{Server, text};

/// The output of each client.
const EXPECTED_OUTPUT: &str = "written under a token\nthe older token is refused: stale_token\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn client(path: &str) -> PathBuf {
    root().join("docs/clients").join(path)
}

fn is_installed(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    found.status.success()
}

/// Runs a client with the addresses of nodes as arguments.
fn run(command: &mut Command, addresses: &[&str]) {
    run_over("http", command, addresses);
}

fn run_over(scheme: &str, command: &mut Command, addresses: &[&str]) {
    let urls = addresses.iter().map(|address| format!("{scheme}://{address}"));
    let output = command.args(urls).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    assert_eq!(text(&output.stdout), EXPECTED_OUTPUT, "{command:?}: {output:?}");
}

fn python_client() -> Command {
    let mut command = Command::new("python3");
    command.arg(client("python/client.py"));
    command
}

/// Compiles the client into this folder.
fn typescript_client(folder: &Path) -> Command {
    // Concurrent tests must not install it at once.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _serial = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let compiler = Command::new(root().join("scripts/typescript")).output().unwrap();
    assert!(compiler.status.success(), "TypeScript cannot be installed: {compiler:?}");
    let compiled = Command::new("node")
        .arg(text(&compiler.stdout).trim())
        .args(["--strict", "--target", "es2022", "--module", "es2022", "--lib", "es2022,dom", "--outDir"])
        .arg(folder)
        .arg(client("typescript/client.ts"))
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    // Without a package.json, this extension marks a module.
    let module = folder.join("client.mjs");
    std::fs::rename(folder.join("client.js"), &module).unwrap();
    let mut command = Command::new("node");
    command.arg(module);
    command
}

fn go_client() -> Option<Command> {
    if !is_installed("go") {
        skip_or_fail("go is not installed, which runs the Go client", "install the package golang-go");
        return None;
    }
    let mut command = Command::new("go");
    command.arg("run").arg(client("go/client.go"));
    Some(command)
}

/// The launcher compiles the source: a runtime without a compiler is not enough.
fn java_client() -> Option<Command> {
    if !is_installed("javac") {
        let remedy = "install the package default-jdk-headless";
        skip_or_fail("no Java compiler is installed, which runs the Java client", remedy);
        return None;
    }
    let mut command = Command::new("java");
    command.arg(client("java/Client.java"));
    Some(command)
}

#[test]
fn python() {
    let server = Server::start();
    run(&mut python_client(), &[&server.address]);
    let value = server.json(&["who", "clients/python"]);
    assert_eq!(value["holders"], serde_json::json!([]), "it was released: {value}");
}

#[test]
fn typescript() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    run(&mut typescript_client(folder.path()), &[&server.address]);
}

#[test]
fn go() {
    let Some(mut client) = go_client() else { return };
    run(&mut client, &[&Server::start().address]);
}

#[test]
fn java() {
    let Some(mut client) = java_client() else { return };
    run(&mut client, &[&Server::start().address]);
}

/// All clients that this machine can run.
fn all_clients(folder: &Path) -> Vec<Command> {
    let clients = [Some(python_client()), Some(typescript_client(folder)), go_client(), java_client()];
    clients.into_iter().flatten().collect()
}

/// The credentials of a client.
struct ClientCredentials {
    ca: PathBuf,
    token: Option<(PathBuf, String)>,
}

impl ClientCredentials {
    fn apply(&self, client: &mut Command) {
        client.env("LOCKKEEPER_CA", &self.ca).env("NODE_EXTRA_CA_CERTS", &self.ca);
        client.env_remove("LOCKKEEPER_AUTH_TOKEN_FILE").env_remove("LOCKKEEPER_AUTH_TOKEN");
        if let Some((file, secret)) = &self.token {
            // The TypeScript client reads the variable, because it has no portable file API.
            client.env("LOCKKEEPER_AUTH_TOKEN_FILE", file).env("LOCKKEEPER_AUTH_TOKEN", secret);
        }
    }
}

/// Writes an access token with rights to the clients' names.
async fn create_token(root: &Caller, folder: &Path) -> (PathBuf, String) {
    let rule = json!({"identity": "clients", "prefix": "clients/", "rights": ["acquire"]});
    root.post("/v1/access/grant", rule).await.ok();
    let made = root.post("/v1/access/token/create", json!({"identity": "clients"})).await.ok();
    let (file, secret) = (folder.join("clients.token"), made["token"].as_str().unwrap().to_owned());
    write_secret(&file, &secret);
    (file, secret)
}

/// A cell with TLS and access control, and the callers of its nodes with the root token.
async fn secure_cell() -> (Cell, Vec<Caller>, Authority) {
    let mut cell = Cell::plan(3);
    let authority = Authority::new(cell.folder(), "nodes");
    let root_token = cell.path("root.token");
    write_secret(&root_token, ROOT_TOKEN);
    let list = cell.list();
    let mut callers = Vec::new();
    for id in 1..=3 {
        let address = cell.node(id).address.clone();
        let own = authority.issue(&format!("node-{id}"), &[&address]);
        let files =
            [&own.certificate, &own.key, &authority.file, &root_token].map(|file| file.to_str().unwrap());
        let [certificate, key, ca, root] = files;
        let words = ["--cell", &list, "--tls-cert", certificate, "--tls-key", key, "--peer-ca", ca];
        cell.spawn_with(id, &[&words[..], &["--root-token-file", root]].concat());
        let (ca, token) = (Some(authority.file.clone()), Some(ROOT_TOKEN.to_owned()));
        callers.push(Caller { address, ca, own: None, token });
    }
    (cell, callers, authority)
}

/// Waits for a leader that all nodes know, and returns its index.
async fn until_led(callers: &[Caller]) -> usize {
    until("all nodes to follow one leader", async || {
        let mut leaders = Vec::new();
        for caller in callers {
            leaders.push(caller.get("/v1/status").await.ok()?.1["leader"].as_u64()?);
        }
        let served = callers[leaders[0] as usize - 1].get("/v1/lock?name=is-there-a-leader").await.ok()?;
        (leaders.iter().all(|leader| *leader == leaders[0]) && served.0 == 200)
            .then_some(leaders[0] as usize - 1)
    })
    .await
}

/// With an access token and a private authority, from a follower to the leader.
#[tokio::test]
async fn clients_authenticate_with_tls_and_follow_the_leader() {
    let (cell, callers, authority) = secure_cell().await;
    let leader = until_led(&callers).await;
    let token = create_token(&callers[leader], cell.folder()).await;
    let follower = callers[(leader + 1) % callers.len()].address.clone();
    let credentials = ClientCredentials { ca: authority.file.clone(), token: Some(token) };
    let done = tokio::task::spawn_blocking(move || {
        let folder = tempfile::tempdir().unwrap();
        for mut client in all_clients(folder.path()) {
            credentials.apply(&mut client);
            run_over("https", &mut client, &[&follower]);
        }
    });
    done.await.unwrap();
    drop(cell);
}

/// Runs all clients at once, which must fail, and returns their output.
async fn run_failing(credentials: ClientCredentials, address: String) -> Vec<String> {
    let run = move || {
        let folder = tempfile::tempdir().unwrap();
        let children: Vec<_> = all_clients(folder.path())
            .into_iter()
            .map(|mut client| {
                credentials.apply(&mut client);
                client.arg(format!("https://{address}")).stdin(Stdio::null());
                client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let outputs = children.into_iter().map(|child| child.wait_with_output().unwrap());
        outputs
            .map(|output| {
                let shown = format!("{}{}", text(&output.stdout), text(&output.stderr));
                assert!(!output.status.success(), "{shown}");
                shown
            })
            .collect()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

#[tokio::test]
async fn clients_without_a_token_are_told_so() {
    let secure = SecureNode::start().await;
    let credentials = ClientCredentials { ca: secure.nodes_ca.file.clone(), token: None };
    for shown in run_failing(credentials, secure.node.address.clone()).await {
        assert!(shown.contains("unauthenticated"), "{shown}");
    }
}

/// They retry until they give up, because a node in front of them may be down, and then say why.
#[tokio::test]
async fn clients_do_not_trust_another_authority() {
    let secure = SecureNode::start().await;
    let token = create_token(&secure.root(), secure.folder.path()).await;
    let credentials = ClientCredentials { ca: secure.clients_ca.file.clone(), token: Some(token) };
    for shown in run_failing(credentials, secure.node.address.clone()).await {
        let shown = shown.to_lowercase();
        assert!(shown.contains("certificate") || shown.contains("certification"), "{shown}");
    }
}

/// Starts a TLS server that redirects every request to this URL.
async fn redirect(secure: &SecureNode, url: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let own = secure.nodes_ca.issue("redirecting", &[&address]);
    let tls =
        ServerTls::new(ServerTlsFiles { own, client_ca: None, peer_ca: None, required: false }).unwrap();
    let body = json!({"error": {"code": "invalid", "message": "this is a redirect"}}).to_string();
    let answer = format!(
        "HTTP/1.1 302 Found\r\nlocation: {url}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: \
         {}\r\n\r\n{body}",
        body.len()
    );
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (tls, answer) = (tls.clone(), answer.clone());
            tokio::spawn(async move {
                let Ok((mut stream, _)) = tls.accept(Stream::Tcp(stream)).await else { return };
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|read| read == request.len()) {}
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    address
}

/// A token must not leave TLS.
#[tokio::test]
async fn clients_do_not_follow_a_redirect_out_of_tls() {
    let secure = SecureNode::start().await;
    let token = create_token(&secure.root(), secure.folder.path()).await;
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/session/open", plain.local_addr().unwrap());
    let address = redirect(&secure, &url).await;
    let credentials = ClientCredentials { ca: secure.nodes_ca.file.clone(), token: Some(token) };
    let outputs = tokio::select! {
        outputs = run_failing(credentials, address) => outputs,
        _ = plain.accept() => panic!("a client followed the redirect"),
    };
    for shown in outputs {
        assert!(shown.contains("this is a redirect") || shown.contains("invalid"), "{shown}");
    }
}

/// A client reaches the leader although its first node is down and the second one does not lead.
#[tokio::test]
async fn clients_find_the_leader() {
    let cell = Cell::start(3).await;
    let leader = cell.until_agreed().await;
    let follower = cell.others(leader)[0];
    let addresses = ["127.0.0.1:1".to_owned(), cell.node(follower).address.clone()];
    let done = tokio::task::spawn_blocking(move || {
        let addresses = [addresses[0].as_str(), addresses[1].as_str()];
        let folder = tempfile::tempdir().unwrap();
        for mut client in all_clients(folder.path()) {
            run(&mut client, &addresses);
        }
    });
    done.await.unwrap();
}
