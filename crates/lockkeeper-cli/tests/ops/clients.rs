//! Runs the example clients of the book in other languages against real nodes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use lockkeeper_net::net::Stream;
use lockkeeper_net::tls::{ServerTls, ServerTlsFiles};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fixture::SecureNode;
use crate::harness::cell::Cell;
use crate::harness::skip::skip_or_fail;
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

/// Starts a TLS server that redirects every request to the leader.
async fn redirect(secure: &SecureNode) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let own = secure.nodes_ca.issue("follower", &[&address]);
    let tls =
        ServerTls::new(ServerTlsFiles { own, client_ca: None, peer_ca: None, required: false }).unwrap();
    let error =
        json!({"error": {"code": "not_leader", "message": "ask the leader", "leader": secure.node.address}});
    let body = error.to_string();
    let answer = format!(
        "HTTP/1.1 421 Misdirected Request\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: \
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

/// With an access token, a private authority, and a redirect that must not leave TLS.
#[tokio::test]
async fn clients_authenticate_with_tls_and_follow_the_leader() {
    let secure = SecureNode::start().await;
    let known = secure.caller_with("clients", "clients/", &["acquire"]).await;
    let token = secure.folder.path().join("clients.token");
    crate::harness::write_secret(&token, known.token.as_deref().unwrap());
    let (ca, secret) = (secure.nodes_ca.file.clone(), known.token.clone().unwrap());
    let redirect = redirect(&secure).await;
    let done = tokio::task::spawn_blocking(move || {
        let folder = tempfile::tempdir().unwrap();
        let clients =
            [Some(python_client()), Some(typescript_client(folder.path())), go_client(), java_client()];
        for mut client in clients.into_iter().flatten() {
            client.env("LOCKKEEPER_CA", &ca).env("NODE_EXTRA_CA_CERTS", &ca);
            // The TypeScript client reads the variable, because it has no portable file API.
            client.env("LOCKKEEPER_AUTH_TOKEN_FILE", &token).env("LOCKKEEPER_AUTH_TOKEN", &secret);
            run_over("https", &mut client, &[&redirect]);
        }
    });
    done.await.unwrap();
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
        let clients =
            [Some(python_client()), Some(typescript_client(folder.path())), go_client(), java_client()];
        for mut client in clients.into_iter().flatten() {
            run(&mut client, &addresses);
        }
    });
    done.await.unwrap();
}
