//! History, audit, top, graph, sessions and the console's stream, over the wire.

use std::time::{Duration, Instant};

use lockkeeper_api::v1;
use lockkeeper_api::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_server::{Node, NodeConfig};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::http::{Client, PATIENCE, request, start};

fn words(history: &Value) -> Vec<String> {
    let events = history["events"].as_array().expect("events");
    events.iter().map(|event| event["what"].as_str().expect("a word").to_owned()).collect()
}

#[tokio::test(flavor = "current_thread")]
async fn history_audit_top_and_graph_are_served_over_http_and_grpc() {
    let (_node, client) = start().await;
    let anna = client.session_of(60_000, "anna").await;
    let bert = client.session_of(60_000, "bert").await;
    let token = client.take(&anna, "job").await;
    let waits = json!({"session": bert, "lock": "job", "wait_ms": 60_000, "mode": "shared"});
    let waiting = client.post_later("/v1/lock/acquire", waits);
    client.until_waiting("job", 1).await;

    let graph = client.get("/v1/graph?name=job").await.ok();
    assert_eq!((graph["points"].as_array().unwrap().len(), &graph["arrows"][0]["lock"]), (2, &json!("job")));
    let top = client.get("/v1/top").await.ok();
    assert_eq!(
        (&top["contended"][0]["lock"], &top["contended"][0]["owner"]),
        (&json!("job"), &json!("anna"))
    );
    assert_eq!(top["longest_held"][0]["token"], token);
    assert_eq!(top["hour"]["granted"].as_array().unwrap().len(), 60);

    client.release(&anna, "job", token).await.ok();
    waiting.await.unwrap().ok();
    client.post("/v1/lock/force_release", json!({"lock": "job", "reason": "test"})).await.ok();
    let history = client.get("/v1/history?name=job").await.ok();
    assert_eq!(words(&history), ["forced", "granted", "released", "granted"]);
    let events = &history["events"];
    assert_eq!((&events[0]["reason"], &events[0]["owner"]), (&json!("test"), &json!("bert")));
    assert_eq!((&events[1]["mode"], &events[1]["held_ms"]), (&json!("shared"), &json!(null)));
    assert!(events[1]["waited_ms"].is_u64() && events[2]["held_ms"].is_u64(), "{history}");
    assert_eq!(events[3]["session"], anna[..8], "enough to tell sessions apart");
    assert_eq!(words(&client.get("/v1/history?name=job&limit=2").await.ok()), ["forced", "granted"]);
    assert_eq!(words(&client.get("/v1/history?name=other").await.ok()), [""; 0]);
    client.get("/v1/history?name=").await.refused(400, "invalid");
    client.get("/v1/history?name=job&limit=many").await.refused(400, "invalid");

    let audit = client.get("/v1/audit").await.ok();
    assert_eq!(
        (&audit["acts"][0]["what"], &audit["acts"][0]["lock"]),
        (&json!("force_release"), &json!("job"))
    );
    assert_eq!(audit["leaders"][0]["node_id"], 1);

    let mut grpc = LockkeeperClient::connect(format!("http://{}", client.address)).await.unwrap();
    let request = v1::GetHistoryRequest { lock: "job".to_owned(), limit: 1 };
    let history = grpc.get_history(request).await.unwrap().into_inner();
    assert_eq!(
        (history.events.len(), history.events[0].what.as_str(), history.events[0].reason.as_str()),
        (1, "forced", "test")
    );
    let acts = grpc.get_audit(v1::GetAuditRequest { limit: 1 }).await.unwrap().into_inner().acts;
    assert_eq!((acts[0].what.as_str(), acts[0].released), ("force_release", Some(1)));
    let top = grpc.get_top(v1::GetTopRequest { limit: 1 }).await.unwrap().into_inner();
    assert_eq!(top.waited.map(|waited| waited.count), Some(2));
    let graph = grpc.get_wait_graph(v1::GetWaitGraphRequest::default()).await.unwrap().into_inner();
    assert_eq!(graph.points.len(), 0);
}

#[tokio::test(flavor = "current_thread")]
async fn sessions_are_listed_without_their_secret_ids() {
    let (_node, client) = start().await;
    let mut known = Vec::new();
    for number in 0..5 {
        known.push(client.session_of(60_000, &format!("worker-{number}")).await);
    }
    client.take(&known[0], "job").await;
    let page = client.get("/v1/sessions").await.ok();
    assert_eq!((page["total"].as_u64(), &page["more"]), (Some(5), &json!(false)));
    let text = page.to_string();
    assert!(known.iter().all(|session| !text.contains(session.as_str())), "a whole session id is shown");
    let mine = client.get("/v1/sessions?owner=worker-0").await.ok();
    assert_eq!(
        (&mine["sessions"][0]["grants"], &mine["sessions"][0]["session"]),
        (&json!(1), &json!(known[0][..8]))
    );
    let left = mine["sessions"][0]["remaining_ms"].as_u64().unwrap();
    assert!((1..=60_000).contains(&left), "{left}");
    // Page by page, without duplicates or gaps.
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = client.get(&format!("/v1/sessions?limit=2&after={after}")).await.ok();
        let part = page["sessions"].as_array().unwrap();
        seen.extend(part.iter().map(|session| session["session"].as_str().unwrap().to_owned()));
        after = seen.last().unwrap().clone();
        if page["more"] == false {
            break;
        }
    }
    known.sort();
    assert_eq!(seen, known.iter().map(|session| session[..8].to_owned()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "current_thread")]
async fn history_survives_a_restart_with_and_without_a_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    for commands_between_snapshots in [1_000_000, 4] {
        let config = || NodeConfig { commands_between_snapshots, ..NodeConfig::durable(folder.path()) };
        let mut node = Node::start(config()).await.unwrap();
        let client = Client { address: node.listen("127.0.0.1:0").await.unwrap() };
        let session = client.session().await;
        for _ in 0..5 {
            let token = client.take(&session, "job").await;
            client.release(&session, "job", token).await.ok();
        }
        let before = client.get("/v1/history?name=job").await.ok();
        let acts = client.get("/v1/audit").await.ok()["leaders"].as_array().unwrap().len();
        node.stop().await;
        let mut node = Node::start(config()).await.unwrap();
        let client = Client { address: node.listen("127.0.0.1:0").await.unwrap() };
        let after = client.get("/v1/history?name=job").await.ok();
        let tokens = |history: &Value| -> Vec<(u64, String)> {
            let events = history["events"].as_array().unwrap().iter();
            events.map(|e| (e["token"].as_u64().unwrap(), e["what"].to_string())).collect()
        };
        assert_eq!(tokens(&before), tokens(&after));
        let leaders = client.get("/v1/audit").await.ok()["leaders"].as_array().unwrap().len();
        assert_eq!(leaders, acts + 1, "one more election");
        node.stop().await;
    }
}

/// Reads events until one is the wanted one.
async fn until_event(
    stream: &mut tokio::net::TcpStream,
    text: &mut String,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    let began = Instant::now();
    loop {
        while let Some(end) = text.find("\n\n") {
            let event: String = text.drain(..end + 2).collect();
            let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) else { continue };
            let view: Value = serde_json::from_str(data).expect("JSON");
            if wanted(&view) {
                return view;
            }
        }
        let mut bytes = [0; 4096];
        let left = PATIENCE.saturating_sub(began.elapsed());
        let read = tokio::time::timeout(left.max(Duration::from_millis(1)), stream.read(&mut bytes));
        let count = read.await.expect("the event in time").expect("the node runs");
        assert!(count > 0, "the stream has ended");
        // Each HTTP/1.1 chunk starts with a line with its length, which is not part of an event.
        text.push_str(&String::from_utf8_lossy(&bytes[..count]).replace('\r', ""));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn view_is_sent_when_it_changes() {
    let (_node, client) = start().await;
    let session = client.session_of(60_000, "anna").await;
    client.get("/console/events?view=nothing").await.refused(400, "invalid");
    client.get("/console/events?view=lock&name=").await.refused(400, "invalid");
    client.get("/console/events?view=cell&color=red").await.refused(400, "invalid");
    let mut stream = client.connect(&request("GET", "/console/events?view=locks&prefix=a", "", b"")).await;
    let mut text = String::new();
    let empty = until_event(&mut stream, &mut text, |_| true).await;
    assert_eq!((&empty["data"]["locks"], &empty["around"]["leads"]), (&json!([]), &json!(true)));
    let token = client.take(&session, "a/1").await;
    let taken = until_event(&mut stream, &mut text, |view| view["data"]["locks"] != json!([])).await;
    let lock = &taken["data"]["locks"][0];
    assert_eq!((&lock["lock"], &lock["holders"][0]["owner"]), (&json!("a/1"), &json!("anna")));
    assert_eq!(lock["holders"][0]["session"], session[..8]);
    client.release(&session, "a/1", token).await.ok();
    until_event(&mut stream, &mut text, |view| view["data"]["locks"] == json!([])).await;
    for view in ["cell", "lock&name=a/1", "graph", "sessions", "top", "elections", "audit"] {
        let bytes = request("GET", &format!("/console/events?view={view}"), "", b"");
        let mut stream = client.connect(&bytes).await;
        let seen = until_event(&mut stream, &mut String::new(), |_| true).await;
        assert!(seen["data"].is_object(), "{view}: {seen}");
    }
    let metrics = client.get("/metrics").await.text();
    assert!(metrics.contains("\nlockkeeper_console_watchers "), "{metrics}");
}

#[tokio::test(flavor = "current_thread")]
async fn number_of_watching_pages_is_limited() {
    let (_node, client) = start().await;
    let bytes = request("GET", "/console/events?view=top", "", b"");
    let mut watching = Vec::new();
    let mut stream;
    loop {
        stream = client.connect(&bytes).await;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        if &head == b"HTTP/1.1 429" {
            break;
        }
        assert_eq!(&head, b"HTTP/1.1 200");
        watching.push(stream);
        assert!(watching.len() <= 256, "there is no bound");
    }
    // A closed page frees its seat.
    watching.clear();
    let began = Instant::now();
    loop {
        let mut stream = client.connect(&bytes).await;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        if &head == b"HTTP/1.1 200" {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "no seat becomes free");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
