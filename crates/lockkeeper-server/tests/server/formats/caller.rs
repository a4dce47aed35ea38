//! A client of the node under test, with or without an access token.

use serde_json::{Value, json};

use crate::http::{Answer, Client};

#[derive(Debug, Clone)]
pub(crate) struct Caller {
    client: Client,
    token: Option<String>,
}

impl Caller {
    pub(crate) fn new(client: Client, token: Option<&str>) -> Caller {
        Caller { client, token: token.map(str::to_owned) }
    }

    async fn send(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let shown = self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n"));
        self.client.request(method, path, &shown.unwrap_or_default(), body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, b"").await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, body.to_string().as_bytes()).await
    }

    /// Starts a POST in the background.
    pub(crate) fn post_later(&self, path: &'static str, body: Value) -> tokio::task::JoinHandle<Answer> {
        let caller = self.clone();
        tokio::spawn(async move { caller.post(path, body).await })
    }

    pub(crate) async fn session_of(&self, ttl_ms: u64, owner: &str) -> String {
        let opened = self.post("/v1/session/open", json!({"ttl_ms": ttl_ms, "owner": owner})).await.ok();
        opened["session"].as_str().expect("a session id").to_owned()
    }

    /// Acquires a lock without waiting and returns its token.
    pub(crate) async fn take(&self, session: &str, lock: &str) -> u64 {
        let granted = self.post("/v1/lock/acquire", json!({"session": session, "lock": lock})).await.ok();
        granted["token"].as_u64().expect("a token")
    }

    pub(crate) async fn until_waiting(&self, name: &str, count: u64) {
        let began = std::time::Instant::now();
        while self.get(&format!("/v1/lock?name={name}")).await.ok()["waiting"] != count {
            assert!(began.elapsed() < crate::http::PATIENCE, "{count} never waited for {name}");
            tokio::time::sleep(std::time::Duration::from_millis(3)).await;
        }
    }
}
