//! Changes of access control that would leave nobody who could undo them.

use serde_json::{Value, json};

use crate::http::{self, Client};

/// An administrator's client with an access token.
struct Administrator {
    client: Client,
    token: String,
}

impl Administrator {
    async fn post(&self, path: &str, body: Value) -> http::Answer {
        let headers = format!("content-type: application/json\r\nauthorization: Bearer {}\r\n", self.token);
        self.client.request("POST", path, &headers, body.to_string().as_bytes()).await
    }

    /// Creates a token and returns its id.
    async fn create_token(&self, identity: &str) -> Value {
        self.post("/v1/access/token/create", json!({"identity": identity})).await.ok()["id"].clone()
    }

    async fn revoke(&self, id: &Value) -> http::Answer {
        self.post("/v1/access/token/revoke", json!({"id": id})).await
    }
}

#[tokio::test(flavor = "current_thread")]
async fn last_token_of_an_administrator_cannot_be_revoked() {
    let (_node, client) = http::start().await;
    let enabled = client.post("/v1/access/enable", json!({"identity": "ada"})).await.ok();
    let (first, token) = (enabled["id"].clone(), enabled["token"].as_str().unwrap().to_owned());
    let ada = Administrator { client, token };
    // A token of another identity does not help: it has no rights to create one.
    ada.post("/v1/access/grant", json!({"identity": "ci", "prefix": "builds/", "rights": ["acquire"]}))
        .await
        .ok();
    let of_ci = ada.create_token("ci").await;
    let refused = ada.revoke(&first).await.refused(400, "invalid");
    let message = refused["message"].as_str().unwrap();
    for hint in ["the last token of an administrator", "access token create", "client certificate"] {
        assert!(message.contains(hint), "{message}");
    }
    ada.revoke(&of_ci).await.ok();
    // With a second one of the same or of another administrator, one of them can go.
    let second = ada.create_token("ada").await;
    ada.revoke(&second).await.ok();
    ada.revoke(&first).await.refused(400, "invalid");
    ada.post("/v1/access/grant", json!({"identity": "bob", "prefix": "", "rights": ["admin"]})).await.ok();
    ada.create_token("bob").await;
    ada.revoke(&first).await.ok();
    ada.revoke(&first).await.refused(401, "unauthenticated");
}
