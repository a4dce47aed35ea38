//! The clients in other languages that the book shows, as they are, against real nodes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::cell::Cell;
use crate::harness::lacking::lacking;
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

fn python_client() -> Command {
    let mut command = Command::new("python3");
    command.arg(client("python/client.py"));
    command
}

/// Compiled into this folder.
fn typescript_client(folder: &Path) -> Command {
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
    // Without a package.json, only this ending says that it is a module.
    let module = folder.join("client.mjs");
    std::fs::rename(folder.join("client.js"), &module).unwrap();
    let mut command = Command::new("node");
    command.arg(module);
    command
}

fn go_client() -> Option<Command> {
    if !is_there("go") {
        lacking("there is no go, which runs the Go client", "install the package golang-go");
        return None;
    }
    let mut command = Command::new("go");
    command.arg("run").arg(client("go/client.go"));
    Some(command)
}

/// The launcher compiles what it runs: a runtime without a compiler will not do.
fn java_client() -> Option<Command> {
    if !is_there("javac") {
        let remedy = "install the package default-jdk-headless";
        lacking("there is no Java compiler, which runs the Java client", remedy);
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

/// Whoever begins with a node that is gone, and then asks one that does not lead, gets there all the same.
#[tokio::test]
async fn they_find_the_node_that_leads() {
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
