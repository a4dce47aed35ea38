//! The clients in other languages that the book shows, as they are, against real nodes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::cell::Cell;
use crate::support::{Server, text};

/// What each of them says.
const SAID: &str = "written under a token\nthe older token is refused: stale_token\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn client(path: &str) -> PathBuf {
    root().join("docs/clients").join(path)
}

fn is_there(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    found.status.success()
}

/// Runs a client with the addresses of nodes behind its own words.
fn run(command: &mut Command, addresses: &[&str]) {
    let urls = addresses.iter().map(|address| format!("http://{address}"));
    let output = command.args(urls).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    assert_eq!(text(&output.stdout), SAID, "{command:?}: {output:?}");
}

#[test]
fn python() {
    let server = Server::start();
    run(Command::new("python3").arg(client("python/client.py")), &[&server.address]);
    let value = server.json(&["who", "clients/python"]);
    assert_eq!(value["holders"], serde_json::json!([]), "it was released: {value}");
}

#[test]
fn typescript() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let compiler = Command::new(root().join("scripts/typescript")).output().unwrap();
    assert!(compiler.status.success(), "TypeScript cannot be installed: {compiler:?}");
    let compiled = Command::new("node")
        .arg(text(&compiler.stdout).trim())
        .args(["--strict", "--target", "es2022", "--module", "es2022", "--lib", "es2022,dom", "--outDir"])
        .arg(folder.path())
        .arg(client("typescript/client.ts"))
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    // Without a package.json, only this ending says that it is a module.
    let module = folder.path().join("client.mjs");
    std::fs::rename(folder.path().join("client.js"), &module).unwrap();
    run(Command::new("node").arg(module), &[&server.address]);
}

#[test]
fn go() {
    if !is_there("go") {
        eprintln!("SKIPPED: no go, the Go client was not run");
        return;
    }
    let server = Server::start();
    run(Command::new("go").arg("run").arg(client("go/client.go")), &[&server.address]);
}

#[test]
fn java() {
    if !is_there("java") {
        eprintln!("SKIPPED: no java, the Java client was not run");
        return;
    }
    let server = Server::start();
    run(Command::new("java").arg(client("java/Client.java")), &[&server.address]);
}

/// Whoever begins with a node that is gone, and then asks one that does not lead, gets there all the same.
#[tokio::test]
async fn they_find_the_node_that_leads() {
    let cell = Cell::start(3).await;
    let leader = cell.until_agreed().await;
    let follower = cell.others(leader)[0];
    let addresses = ["127.0.0.1:1".to_owned(), cell.node(follower).address.clone()];
    let done = tokio::task::spawn_blocking(move || {
        let addresses = [addresses[0].as_str(), addresses[1].as_str()];
        run(Command::new("python3").arg(client("python/client.py")), &addresses);
    });
    done.await.unwrap();
}
