//! Consul: transactions that lock and unlock the key of a lock, sent with the crate `reqwest`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as Json, json};

use crate::{Recipe, random_hex};

/// One session.
pub(crate) struct Session {
    http: reqwest::Client,
    address: SocketAddr,
    id: String,
    /// The index at which each lock was last free.
    free_at: Mutex<HashMap<usize, u64>>,
}

impl Session {
    pub(crate) async fn open(address: SocketAddr) -> Session {
        let http = reqwest::Client::builder().tcp_nodelay(true).build().unwrap();
        let mut session = Session { http, address, id: String::new(), free_at: Mutex::default() };
        let request = json!({"TTL": "600s", "LockDelay": "0s", "NodeChecks": []});
        session.id = session.put("/v1/session/create", &request).await["ID"].as_str().unwrap().to_owned();
        session
    }

    async fn put(&self, path: &str, body: &Json) -> Json {
        let request = self.http.put(format!("http://{}{path}", self.address)).body(body.to_string());
        let answer = request.send().await.unwrap().error_for_status().unwrap();
        serde_json::from_str(&answer.text().await.unwrap()).unwrap()
    }

    /// Runs two steps and returns the modify index of the key afterwards.
    async fn transaction(&self, steps: [Json; 2]) -> u64 {
        let steps = steps.map(|step| json!({ "KV": step }));
        let answer = self.put("/v1/txn", &Json::Array(steps.to_vec())).await;
        answer["Results"].as_array().unwrap().last().unwrap()["KV"]["ModifyIndex"].as_u64().unwrap()
    }
}

impl Recipe for Session {
    async fn pair(&self, client: usize) {
        let key = format!("direct/locks/{client}");
        let before = self.free_at.lock().unwrap().get(&client).copied();
        let unchanged = match before {
            None => json!({"Verb": "check-not-exists", "Key": key}),
            Some(index) => json!({"Verb": "check-index", "Key": key, "Index": index}),
        };
        let value = STANDARD.encode(format!("0 {} direct", random_hex::<16>()));
        let lock = json!({"Verb": "lock", "Key": key, "Value": value, "Session": self.id});
        let index = self.transaction([unchanged, lock]).await;
        let held = json!({"Verb": "check-index", "Key": key, "Index": index});
        let unlock = json!({"Verb": "unlock", "Key": key, "Value": "", "Session": self.id});
        let index = self.transaction([held, unlock]).await;
        self.free_at.lock().unwrap().insert(client, index);
    }
}
