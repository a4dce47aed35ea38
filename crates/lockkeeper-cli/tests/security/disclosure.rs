//! Isolation between tenants: views, error details and event streams disclose nothing of others.

use std::time::Duration;

use lockkeeper::Keeper;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{Caller, SecureNode};
use crate::harness::{LONG, until};

/// A stream of server-sent events, and the text received so far.
struct Events {
    stream: lockkeeper_net::net::Stream,
    text: String,
}

impl Events {
    async fn open(caller: &Caller, path: &str) -> Events {
        let mut stream = caller.credentials().connect(&caller.address, None, |_| Ok(())).await.unwrap();
        let token = caller.token.as_deref().unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        Events { stream, text: String::new() }
    }

    /// Reads until the text has these words.
    async fn until(&mut self, words: &str) {
        let read = async {
            while !self.text.contains(words) {
                assert!(self.more().await, "the stream ended without {words}: {}", self.text);
            }
        };
        tokio::time::timeout(LONG, read).await.unwrap_or_else(|_| panic!("no {words}"));
    }

    /// Reads more. Returns false at the end.
    async fn more(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let read = self.stream.read(&mut bytes).await.unwrap_or(0);
        self.text.push_str(&String::from_utf8_lossy(&bytes[..read]));
        read > 0
    }

    /// Reads up to the end, which must come.
    async fn rest(mut self) -> String {
        // The last chunk of HTTP/1.1 is the end: the connection itself stays open.
        self.until("\r\n0\r\n\r\n").await;
        self.text
    }
}

#[tokio::test]
async fn views_show_only_the_first_digits_of_a_session() {
    let secure = SecureNode::start().await;
    let ada = secure.caller_with("ada", "", &["acquire"]).await;
    let session = ada.session().await;
    ada.acquire(&session, "a").await.ok();
    let (waiter, waits) = (ada.clone(), ada.session().await);
    let body = json!({"session": waits, "lock": "a", "wait_ms": 60_000, "request": "r"});
    let waiting = tokio::spawn(async move { waiter.post("/v1/lock/acquire", body).await });
    let lock = until("the waiter", async || {
        let lock = ada.read("/v1/lock?name=a").await.ok();
        (lock["waiting"] == 1).then_some(lock)
    })
    .await;
    assert_eq!(
        (&lock["holders"][0]["session"], &lock["queue"][0]["session"]),
        (&json!(session[..8]), &json!(waits[..8]))
    );
    let mut seen = String::new();
    for path in [
        "/v1/lock?name=a",
        "/v1/locks",
        "/v1/history?name=a",
        "/v1/graph",
        "/v1/sessions",
        "/v1/top",
        "/v1/audit",
    ] {
        seen.push_str(&ada.read(path).await.ok().to_string());
    }
    for words in [
        &["who", "a", "-o", "json"][..],
        &["who", "a"],
        &["ls", "-o", "json"],
        &["explain", "a"],
        &["history", "a"],
    ] {
        let output = ada.cli(words).await;
        seen.push_str(&String::from_utf8_lossy(&output.stdout));
    }
    let keeper = ada.keeper().await.unwrap();
    seen.push_str(&format!("{:?}", keeper.who("a").await.unwrap()));
    let mut events = Events::open(&ada, "/console/events?view=lock&name=a").await;
    events.until(&session[..8]).await;
    seen.push_str(&events.text);
    seen.push_str(&secure.node.log_text());
    assert!(seen.contains(&session[..8]) && seen.contains(&waits[..8]));
    assert!(!seen.contains(&session[..16]) && !seen.contains(&waits[..16]), "{seen}");
    waiting.abort();
}

#[tokio::test]
async fn event_streams_end_when_the_right_or_token_is_revoked() {
    let secure = SecureNode::start().await;
    let ada = secure.caller_with("ada", "", &["read"]).await;
    let bert = secure.caller_with("bert", "", &["read"]).await;
    let open = async |caller: &Caller| {
        let mut all = Vec::new();
        for path in ["/console/events?view=locks", "/console/events?view=cell", "/v1/election/observe?name=e"]
        {
            let mut events = Events::open(caller, path).await;
            events.until("data:").await;
            all.push(events);
        }
        all
    };
    let (of_ada, of_bert) = (open(&ada).await, open(&bert).await);
    let token = ada.token.as_deref().unwrap().split('_').nth(1).unwrap().to_owned();
    secure.root().post("/v1/access/token/revoke", json!({"id": token})).await.ok();
    secure.root().post("/v1/access/revoke", json!({"identity": "bert", "prefix": ""})).await.ok();
    let root = secure.root();
    let session = root.session().await;
    root.acquire(&session, "secret-name").await.ok();
    for (events, code) in of_ada
        .into_iter()
        .map(|it| (it, "unauthenticated"))
        .chain(of_bert.into_iter().map(|it| (it, "forbidden")))
    {
        let text = tokio::time::timeout(LONG, events.rest()).await.expect("it ends");
        assert!(text.contains(code), "{text}");
        assert!(!text.contains("secret-name"), "{text}");
    }
}

/// The right is revoked during the wait.
#[tokio::test]
async fn waiter_with_a_revoked_right_gets_no_grant() {
    let secure = SecureNode::start().await;
    let ada = secure.caller_with("ada", "", &["acquire"]).await;
    let root = secure.root();
    let session = root.session().await;
    let held = root.acquire(&session, "a").await.ok();
    let keeper: Keeper = ada.keeper().await.unwrap();
    let by_stream = tokio::spawn(async move { keeper.lock("a").wait(LONG).acquire().await.map(|_| ()) });
    let (by_http, waits) = (ada.clone(), ada.session().await);
    let body = json!({"session": waits, "lock": "a", "wait_ms": 60_000});
    let by_http = tokio::spawn(async move { by_http.post("/v1/lock/acquire", body).await });
    let waiting = async |count: u64| {
        until("the waiters", async || {
            (root.read("/v1/lock?name=a").await.ok()["waiting"] == count).then_some(())
        })
        .await;
    };
    waiting(2).await;
    root.post("/v1/access/revoke", json!({"identity": "ada", "prefix": ""})).await.ok();
    root.post("/v1/lock/release", json!({"session": session, "lock": "a", "token": held["token"]}))
        .await
        .ok();
    let refused = tokio::time::timeout(LONG, by_stream).await.unwrap().unwrap();
    assert_eq!(refused.unwrap_err().code(), "forbidden");
    tokio::time::timeout(LONG, by_http).await.unwrap().unwrap().assert_refused(403, "forbidden");
    until("the lock to be free again", async || {
        let lock = root.read("/v1/lock?name=a").await.ok();
        (lock["holders"] == json!([]) && lock["waiting"] == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn fence_discloses_nothing_of_a_forbidden_lock() {
    let secure = SecureNode::start().await;
    let eve = secure.caller_with("eve", "eve/", &["acquire"]).await;
    let root = secure.root();
    let session = root.session().await;
    let last = root.acquire(&session, "theirs/1").await.ok()["token"].as_u64().unwrap();
    for token in [1, last, last + 1] {
        let fence = json!({"lock": "theirs/1", "token": token});
        let put = eve.post("/v1/value/put", json!({"key": "eve/k", "value": "v", "fence": fence})).await;
        let refused = put.assert_refused(403, "forbidden");
        assert_eq!(refused["error"].get("last_token"), None, "{refused}");
        eve.post("/v1/value/delete", json!({"key": "eve/k", "fence": fence}))
            .await
            .assert_refused(403, "forbidden");
    }
    let own = eve.acquire(&eve.session().await, "eve/1").await.ok()["token"].clone();
    let fence = json!({"lock": "eve/1", "token": own});
    eve.post("/v1/value/put", json!({"key": "eve/k", "value": "v", "fence": fence})).await.ok();
}

#[tokio::test]
async fn deadlock_error_names_only_readable_locks() {
    let secure = SecureNode::start().await;
    // Both may take "shared/": a cycle needs locks that are taken by both.
    let ada = secure.caller_with("ada", "ada/", &["acquire"]).await;
    let bert = secure.caller_with("bert", "bert/", &["acquire"]).await;
    for identity in ["ada", "bert"] {
        secure.grant(identity, "shared/", &["acquire"]).await;
    }
    secure.grant("carl", "bert/", &["acquire"]).await;
    let carl = secure.caller_with("carl", "shared/", &["acquire"]).await;
    let open = async |caller: &Caller, owner: &str| {
        let opened = caller.post("/v1/session/open", json!({"ttl_ms": 60_000, "owner": owner})).await.ok();
        opened["session"].as_str().unwrap().to_owned()
    };
    let take = |caller: &Caller, session: &str, scope: &str, lock: &str, wait_ms: u64| {
        let body = json!({"session": session, "lock": lock, "scope": scope, "wait_ms": wait_ms, "request": format!("{scope}-{lock}")});
        let caller = caller.clone();
        async move { caller.post("/v1/lock/acquire", body).await }
    };
    let (of_ada, of_bert, of_carl) =
        (open(&ada, "owner-ada").await, open(&bert, "owner-bert").await, open(&carl, "owner-carl").await);
    // ada: shared/1; bert: bert/secret; carl: shared/2. bert waits for shared/2, carl waits for bert/secret ...
    take(&ada, &of_ada, "sa", "shared/1", 0).await.ok();
    take(&bert, &of_bert, "sb", "bert/secret", 0).await.ok();
    take(&carl, &of_carl, "sc", "shared/2", 0).await.ok();
    let one = tokio::spawn(take(&bert, &of_bert, "sb", "shared/1", 60_000));
    let two = tokio::spawn(take(&carl, &of_carl, "sc", "bert/secret", 60_000));
    let root = secure.root();
    until("both to wait", async || {
        let waits = async |lock: &str| root.read(&format!("/v1/lock?name={lock}")).await.ok()["waiting"] == 1;
        (waits("shared/1").await && waits("bert%2Fsecret").await).then_some(())
    })
    .await;
    // ... and ada closes the cycle.
    let refused: Value = take(&ada, &of_ada, "sa", "shared/2", 60_000).await.assert_refused(409, "deadlock");
    let text = refused.to_string();
    assert!(!text.contains("bert/secret") && !text.contains("owner-carl"), "{text}");
    assert!(text.contains("shared/2") && text.contains("shared/1") && text.contains("owner-bert"), "{text}");
    assert_eq!(refused["error"]["cycle"].as_array().unwrap().len(), 3, "{text}");
    one.abort();
    two.abort();
}

#[tokio::test]
async fn identity_without_rights_cannot_open_console_streams() {
    let secure = SecureNode::start().await;
    let made = secure.root().post("/v1/access/token/create", json!({"identity": "idle"})).await.ok();
    let idle = secure.anonymous().token(made["token"].as_str().unwrap());
    idle.read("/v1/status").await.ok();
    for view in ["cell", "locks", "graph", "audit"] {
        idle.read(&format!("/console/events?view={view}")).await.assert_refused(403, "forbidden");
    }
    // A partial reader sees the cell, but no names outside its prefix.
    let root = secure.root();
    let session = root.session().await;
    root.acquire(&session, "secret-name").await.ok();
    let ada = secure.caller_with("ada", "ada/", &["read"]).await;
    let mut events = Events::open(&ada, "/console/events?view=cell").await;
    events.until("\"longest_held\"").await;
    assert!(!events.text.contains("secret-name"), "{}", events.text);
    // One identity cannot use all seats.
    let mut seats = Vec::new();
    let refused = loop {
        let mut next = Events::open(&ada, "/console/events?view=cell").await;
        next.until("\r\n\r\n").await;
        if !next.text.starts_with("HTTP/1.1 200") {
            break next.text;
        }
        seats.push(next);
        assert!(seats.len() < 200, "one identity takes all seats");
    };
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    let mut roots = Events::open(&root, "/console/events?view=cell").await;
    roots.until("data:").await;
    drop(seats);
    tokio::time::sleep(Duration::ZERO).await;
}
