//! The console of a cell with authentication: it asks for a token, shows what the token allows, and force-releases only with
//! the right to do so.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::browser::Browser;
use crate::harness::node::{Node, free_address};
use crate::harness::until;

const ROOT: &str = "the root token of the console's test";

/// A POST with a token.
async fn post(address: &str, token: &str, path: &str, body: Value) -> Value {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {token}\r\ncontent-length: \
         {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{path}: {text}");
    serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[tokio::test]
async fn console_asks_for_a_token_and_respects_its_rights() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("root.token");
    crate::harness::write_secret(&file, ROOT);
    let address = free_address(7420);
    let mut node = Node::new(1, address.clone(), address.clone(), folder.path());
    node.spawn(&["--root-token-file", file.to_str().unwrap()]);
    until("the node", async || {
        let ready = crate::harness::http::quick_get(&address, "/readyz").await?;
        (ready.status == 200).then_some(())
    })
    .await;
    let rule = json!({"identity": "looker", "prefix": "", "rights": ["read"]});
    post(&address, ROOT, "/v1/access/grant", rule).await;
    let made = post(&address, ROOT, "/v1/access/token/create", json!({"identity": "looker"})).await;
    let opened =
        post(&address, ROOT, "/v1/session/open", json!({"ttl_ms": 600_000, "owner": "somebody"})).await;
    let lock = json!({"session": opened["session"], "lock": "orders/1"});
    post(&address, ROOT, "/v1/lock/acquire", lock).await;

    let browser = Browser::start().await;
    let sign_in = async |token: &str| {
        browser.until("document.getElementById('token').open").await;
        browser.eval(&format!("document.getElementById('token-text').value = {}", json!(token))).await;
        browser.eval("document.getElementById('token-do').click()").await;
        browser.until("!document.getElementById('token').open").await;
    };
    let force = async || {
        browser.until("document.getElementById('force-open') !== null").await;
        browser.eval("document.getElementById('force-open').click()").await;
        browser.eval("document.getElementById('force-reason').value = 'stuck'").await;
        browser.eval("document.getElementById('force-do').click()").await;
    };
    browser.visit(&format!("http://{address}/#/lock?name=orders%2F1")).await;
    sign_in(made["token"].as_str().unwrap()).await;
    browser.until_text("somebody").await;
    force().await;
    browser
        .until("document.getElementById('force-error').textContent.includes('may not force-release')")
        .await;
    browser.eval("document.getElementById('force-cancel').click()").await;
    // The page asks for another token.
    sign_in(ROOT).await;
    force().await;
    browser.until("!document.getElementById('force').open").await;
    browser.until_text("stuck").await;
}
