//! Invalid and malicious input: always answered with a clear error, never with a hang or a 500.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Answer, Client, start};

const POSTS: [&str; 15] = [
    "/v1/session/open",
    "/v1/session/keepalive",
    "/v1/session/close",
    "/v1/lock/acquire",
    "/v1/lock/acquire_all",
    "/v1/lock/release",
    "/v1/lock/cancel",
    "/v1/lock/force_release",
    "/v1/token/check",
    "/v1/value/put",
    "/v1/value/delete",
    "/v1/election/campaign",
    "/v1/election/resign",
    "/v1/election/handover",
    "/v1/rate/take",
];

async fn post_bytes(client: Client, path: &str, body: &[u8]) -> Answer {
    client.request("POST", path, "", body).await
}

#[tokio::test(flavor = "current_thread")]
async fn body_that_is_not_a_json_object_is_refused_by_every_call() {
    let (_node, client) = start().await;
    let deep = format!("{{\"session\": {}", "[".repeat(50_000));
    let bodies: [&[u8]; 16] = [
        b"",
        b"   \r\n",
        b"{",
        b"nonsense",
        b"null",
        b"true",
        b"42",
        b"\"text\"",
        b"[]",
        b"[1000, \"me\"]",
        b"{} {}",
        b"{\"session\": NaN}",
        b"{\"session\": \"\xff\xfe\"}",
        b"\xef\xbb\xbf{}",
        b"session=a&lock=b",
        deep.as_bytes(),
    ];
    for path in POSTS {
        for body in bodies {
            post_bytes(client, path, body).await.refused(400, "invalid");
        }
        post_bytes(client, path, &"[".repeat(200_000).into_bytes()).await.refused(400, "invalid");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn refusal_names_the_invalid_field() {
    let (_node, client) = start().await;
    for (path, body, named) in [
        ("/v1/session/open", r#"{}"#, "`ttl_ms`"),
        ("/v1/session/open", r#"{"ttl": 5000}"#, "unknown field `ttl`, expected `ttl_ms` or `owner`"),
        ("/v1/session/open", r#"{"ttl_ms": "5000"}"#, "ttl_ms: invalid type: string"),
        ("/v1/session/open", r#"{"ttl_ms": -1}"#, "ttl_ms: "),
        ("/v1/session/open", r#"{"ttl_ms": 5000.5}"#, "ttl_ms: "),
        ("/v1/session/open", r#"{"ttl_ms": 5e3}"#, "ttl_ms: "),
        ("/v1/session/open", r#"{"ttl_ms": 18446744073709551616}"#, "ttl_ms: "),
        ("/v1/session/open", r#"{"ttl_ms": 5000, "ttl_ms": 5000}"#, "duplicate field `ttl_ms`"),
        ("/v1/session/open", r#"{"ttl_ms": 0}"#, "ttl_ms is 0"),
        ("/v1/session/open", r#"{"ttl_ms": 99}"#, "ttl_ms is 99"),
        ("/v1/session/open", r#"{"ttl_ms": 86400001}"#, "ttl_ms is 86400001"),
        ("/v1/session/open", r#"{"ttl_ms": 5000, "owner": 7}"#, "owner: "),
        ("/v1/session/keepalive", r#"{"session": 7}"#, "session: "),
        ("/v1/lock/acquire", r#"{"lock": "l"}"#, "`session`"),
        ("/v1/lock/acquire", r#"{"session": "s"}"#, "`lock`"),
        ("/v1/lock/acquire", r#"{"session": "s", "lock": "l", "wait": 5}"#, "unknown field `wait`"),
        ("/v1/lock/acquire", r#"{"session": "s", "lock": "l", "wait_ms": -1}"#, "wait_ms: "),
        ("/v1/lock/acquire", r#"{"session": "s", "lock": "l", "wait_ms": "forever"}"#, "wait_ms: "),
        ("/v1/lock/acquire", r#"{"session": "s", "lock": "l", "permits": 4294967296}"#, "permits: "),
        ("/v1/lock/acquire", r#"{"session": "s", "lock": "l", "mode": "x"}"#, "`exclusive` or `shared`"),
        ("/v1/lock/acquire_all", r#"{"session": "s", "locks": ["a", 1]}"#, "locks[1]: "),
        ("/v1/lock/release", r#"{"session": "s", "lock": "l"}"#, "`token`"),
        ("/v1/lock/release", r#"{"session": "s", "lock": "l", "token": -1}"#, "token: "),
        ("/v1/lock/force_release", r#"{"lock": "l"}"#, "`reason`"),
        (
            "/v1/value/put",
            r#"{"key": "k", "value": "v", "fence": {"lock": "l", "token": "1"}}"#,
            "fence.token: ",
        ),
        ("/v1/rate/take", r#"{"limiter": "l", "rate_per_s": "fast", "burst": 1}"#, "rate_per_s: "),
    ] {
        let error = post_bytes(client, path, body.as_bytes()).await.refused(400, "invalid");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(named), "{path} {body}: {message}");
    }
    let session = client.session().await;
    for (lock, status, code) in
        [("", 400, "invalid"), ("a\nb", 400, "invalid"), (&"n".repeat(513), 413, "too_large")]
    {
        for path in ["/v1/lock/acquire", "/v1/lock/force_release"] {
            let mut body = json!({"lock": lock});
            match path {
                "/v1/lock/acquire" => body["session"] = json!(session),
                _ => body["reason"] = json!("test"),
            }
            client.post(path, body).await.refused(status, code);
        }
    }
    let long = json!({"session": session, "lock": "l", "wait_ms": 604_800_001});
    client.post("/v1/lock/acquire", long).await.refused(400, "invalid");
    let owner = json!({"ttl_ms": 5000, "owner": "o".repeat(513)});
    client.post("/v1/session/open", owner).await.refused(413, "too_large");
}

#[tokio::test(flavor = "current_thread")]
async fn any_content_type_is_accepted_but_a_form_is_refused_with_a_hint() {
    let (_node, client) = start().await;
    let body = br#"{"ttl_ms": 5000}"#;
    for kind in [
        "",
        "content-type: text/plain\r\n",
        "content-type: application/x-www-form-urlencoded\r\n",
        "content-type: ä\r\n",
    ] {
        client.request("POST", "/v1/session/open", kind, body).await.ok();
    }
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    let error =
        client.request("POST", "/v1/session/open", form, b"ttl_ms=5000").await.refused(400, "invalid");
    assert!(error["message"].as_str().unwrap().contains("not a form"), "{error}");
}

#[tokio::test(flavor = "current_thread")]
async fn unknown_paths_and_methods_are_answered_with_an_error_body() {
    let (_node, client) = start().await;
    for path in [
        "/nothing",
        "/v1",
        "/v1/",
        "/v1/lock/steal",
        "/v2/lock",
        "/v1/lock/acquire/x",
        "//",
        "/%00",
        "/lockkeeper.v1",
    ] {
        let error = client.get(path).await.refused(404, "invalid");
        assert!(error["message"].as_str().unwrap().contains("/openapi.json"), "{error}");
        client.post(path, json!({})).await.refused(404, "invalid");
    }
    let error = client.get("/v1/status/").await.refused(404, "invalid");
    assert!(error["message"].as_str().unwrap().contains("did you mean /v1/status?"), "{error}");
    for path in POSTS {
        for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let answer = client.request(method, path, "", b"").await;
            answer.refused(405, "invalid");
            assert_eq!(answer.header("allow"), Some("POST"), "{method} {path}");
        }
    }
    for path in [
        "/v1/lock?name=a",
        "/v1/locks",
        "/v1/value?key=k",
        "/v1/status",
        "/livez",
        "/readyz",
        "/metrics",
        "/",
    ] {
        let answer = client.post(path, json!({})).await;
        answer.refused(405, "invalid");
        assert_eq!(answer.header("allow"), Some("GET,HEAD"), "{path}");
        let head = client.request("HEAD", path, "", b"").await;
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
    }
    // gRPC needs HTTP/2, whatever the path.
    let kind = "content-type: application/grpc\r\n";
    client.request("POST", "/no.such.Service/Call", kind, b"").await.refused(415, "invalid");
}

#[tokio::test(flavor = "current_thread")]
async fn every_answer_has_a_content_type_and_is_not_cached() {
    let (_node, client) = start().await;
    let json_kind = "application/json";
    for (path, kind) in [
        ("/v1/status", json_kind),
        ("/v1/lock?name=a", json_kind),
        ("/livez", json_kind),
        ("/readyz", json_kind),
        ("/version", json_kind),
        ("/openapi.json", json_kind),
        ("/v1/openapi.json", json_kind),
        ("/nothing", json_kind),
        ("/v1/lock", json_kind),
        ("/v1/session/open", json_kind),
        ("/", "text/html; charset=utf-8"),
        ("/console/app.js", "text/javascript; charset=utf-8"),
        ("/console/style.css", "text/css; charset=utf-8"),
        ("/console/nothing.js", json_kind),
    ] {
        let answer = client.get(path).await;
        assert_eq!(answer.header("content-type"), Some(kind), "{path}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
    }
    let page = client.get("/").await;
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let text = page.text();
    for outside in ["http://", "https://", "@import", "innerHTML", "document.write", "<style", "onclick"] {
        assert!(!text.contains(outside), "the page has {outside}");
    }
    for source in text.split("src=").skip(1) {
        assert!(source.starts_with("\"/console/"), "a source elsewhere: {source}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn pages_of_other_sites_are_refused() {
    let (_node, client) = start().await;
    let body = br#"{"ttl_ms": 5000}"#;
    let open = |headers: &'static str| client.request("POST", "/v1/session/open", headers, body);
    for foreign in [
        "origin: http://evil.example\r\n",
        "origin: null\r\n",
        "origin: http://localhost.evil.example\r\n",
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: same-site\r\norigin: http://localhost\r\n",
    ] {
        open(foreign).await.refused(403, "forbidden");
    }
    for own in [
        "",
        "origin: http://localhost\r\n",
        "origin: https://localhost\r\n",
        "sec-fetch-site: same-origin\r\n",
        "sec-fetch-site: none\r\n",
    ] {
        open(own).await.ok();
    }
    let get = |path: &'static str, headers: &'static str| client.request("GET", path, headers, b"");
    get("/v1/status", "origin: http://evil.example\r\n").await.refused(403, "forbidden");
    // A user may follow a link to the console, but to nothing else, and not inside a frame.
    let link = "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";
    let inside = "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: iframe\r\n";
    assert_eq!(get("/", link).await.status, 200);
    get("/v1/status", link).await.refused(403, "forbidden");
    get("/", inside).await.refused(403, "forbidden");
}

#[tokio::test(flavor = "current_thread")]
async fn too_large_body_is_refused_whether_announced_or_sent() {
    let (_node, client) = start().await;
    let large = vec![b' '; 256 * 1024 + 1];
    for path in ["/v1/value/put", "/v1/rate/take"] {
        post_bytes(client, path, &large).await.refused(413, "too_large");
    }
    let mut fits = br#"{"ttl_ms": 5000}"#.to_vec();
    fits.resize(256 * 1024, b' ');
    post_bytes(client, "/v1/session/open", &fits).await.ok();
    post_bytes(client, "/v1/session/open", &vec![b' '; 4 << 20]).await.refused(413, "too_large");
    // Announced, not sent.
    for announced in ["content-length: 300000\r\nexpect: 100-continue", "content-length: 99999999999"] {
        let head = format!(
            "POST /v1/value/put HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{announced}\r\n\r\n"
        );
        client.send(head.as_bytes()).await.refused(413, "too_large");
    }
    // Chunked, without a length.
    let mut chunked = b"POST /v1/value/put HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..5 {
        chunked.extend_from_slice(format!("{:x}\r\n{}\r\n", 65_536, " ".repeat(65_536)).as_bytes());
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    client.send(&chunked).await.refused(413, "too_large");
}

#[tokio::test(flavor = "current_thread")]
async fn expect_100_continue_is_answered() {
    let (_node, client) = start().await;
    let body = br#"{"ttl_ms": 5000}"#;
    let head = format!(
        "POST /v1/session/open HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = client.connect(head.as_bytes()).await;
    let mut first = [0; 25];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body).await.unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert!(rest.starts_with("HTTP/1.1 200 OK\r\n"), "{rest}");
}

#[tokio::test(flavor = "current_thread")]
async fn incomplete_body_times_out() {
    let (_node, client) = start().await;
    let head = "POST /v1/session/open HTTP/1.1\r\nhost: localhost\r\ncontent-length: 16\r\n\r\n{\"ttl_ms\"";
    client.send(head.as_bytes()).await.refused(408, "invalid");
    // Other requests are not affected.
    client.session().await;
}

#[tokio::test(flavor = "current_thread")]
async fn truncated_body_does_nothing() {
    let (_node, client) = start().await;
    let head =
        "POST /v1/session/open HTTP/1.1\r\nhost: localhost\r\ncontent-length: 17\r\n\r\n{\"ttl_ms\": 5000}";
    let mut stream = client.connect(head.as_bytes()).await;
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
    assert_eq!(client.get("/v1/status").await.ok()["sessions"], 0);
}

// ---- fuzzing --------------------------------------------------------------------------------------------

/// Xorshift: the same bodies in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}

fn seed(path: &str, session: &str) -> Value {
    match path {
        "/v1/session/open" => json!({"ttl_ms": 60000, "owner": "fuzz"}),
        "/v1/session/keepalive" | "/v1/session/close" => json!({"session": session}),
        "/v1/lock/acquire" => {
            json!({"session": session, "lock": "l", "mode": "shared", "permits": 1, "capacity": 3,
            "wait_ms": 0, "request": "r", "scope": null, "policy": null, "lock_delay_ms": 0})
        }
        "/v1/lock/acquire_all" => {
            json!({"session": session, "locks": ["l", "m"], "wait_ms": 0, "request": 1})
        }
        "/v1/lock/release" => json!({"session": session, "lock": "l", "token": 1}),
        "/v1/lock/cancel" => json!({"session": session, "request": "r"}),
        "/v1/lock/force_release" => json!({"lock": "l", "reason": "fuzz"}),
        "/v1/token/check" => json!({"sequencer": "lk1:1:x:l"}),
        "/v1/value/put" => {
            json!({"key": "k", "value": "v", "fence": {"lock": "l", "token": 1}, "if_version": 0})
        }
        "/v1/value/delete" => json!({"key": "k", "fence": {"lock": "l", "token": 1}, "if_version": 0}),
        "/v1/election/campaign" => json!({"session": session, "election": "e", "value": "v", "wait_ms": 0}),
        "/v1/election/handover" => json!({"session": session, "election": "e", "epoch": 1, "to": "t"}),
        "/v1/election/resign" => json!({"session": session, "election": "e", "epoch": 1}),
        _ => json!({"limiter": "l", "permits": 1, "rate_per_s": 1.5, "burst": 2}),
    }
}

fn mutated(dice: &mut Dice, seed: &Value) -> Vec<u8> {
    const ODD: [&str; 16] = [
        "null",
        "-1",
        "0",
        "1",
        "1.5",
        "1e400",
        "18446744073709551616",
        "9007199254740993",
        "\"\"",
        "\"\\u0000\"",
        "\"\\ud800\"",
        "[]",
        "{}",
        "[[[]]]",
        "false",
        "\"lk1:1:x:%zz\"",
    ];
    let mut text = seed.to_string().into_bytes();
    match dice.roll(6) {
        // One field has another value.
        0 | 1 => {
            let fields = seed.as_object().expect("a seed is an object");
            let at = dice.roll(fields.len());
            let odd = ODD[dice.roll(ODD.len())];
            let pairs = fields.iter().enumerate().map(|(place, (key, value))| {
                let value = if place == at { odd.to_owned() } else { value.to_string() };
                format!("{}: {value}", json!(key))
            });
            text = format!("{{{}}}", pairs.collect::<Vec<_>>().join(", ")).into_bytes();
        }
        2 => text.truncate(dice.roll(text.len())),
        3 => {
            for _ in 0..=dice.roll(4) {
                let at = dice.roll(text.len());
                text[at] = dice.roll(256) as u8;
            }
        }
        4 => {
            let (from, to) = (dice.roll(text.len()), dice.roll(text.len()));
            let piece = text[from.min(to)..from.max(to)].to_vec();
            let at = dice.roll(text.len());
            text.splice(at..at, piece);
        }
        _ => text = (0..dice.roll(200)).map(|_| dice.roll(256) as u8).collect(),
    }
    text
}

#[tokio::test(flavor = "current_thread")]
async fn mutated_bodies_get_a_proper_answer_and_the_node_keeps_serving() {
    let (_node, client) = start().await;
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    let mut session = client.session().await;
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for round in 0..4_000 {
        let path = POSTS[round % POSTS.len()];
        let body = mutated(&mut dice, &seed(path, &session));
        let answer = post_bytes(client, path, &body).await;
        let shown =
            || format!("round {round} {path} {:?}: {}", String::from_utf8_lossy(&body), answer.text());
        let value = answer.json();
        if answer.status == 200 {
            *seen.entry("ok".to_owned()).or_default() += 1;
            if path == "/v1/session/close" {
                session = client.session().await;
            }
            continue;
        }
        let code = value["error"]["code"].as_str().unwrap_or_else(|| panic!("{}", shown()));
        assert!(value["error"]["message"].is_string(), "{}", shown());
        let expected = match code {
            "busy" | "not_held" => 409,
            "timeout" => 408,
            "session_lost" => 410,
            "stale_token" | "version_mismatch" => 412,
            "invalid" => 400,
            "too_large" => 413,
            other => panic!("{other}: {}", shown()),
        };
        assert_eq!(answer.status, expected, "{}", shown());
        *seen.entry(code.to_owned()).or_default() += 1;
    }
    // The mutations reach past the parser.
    for code in ["ok", "invalid", "session_lost", "not_held", "stale_token"] {
        assert!(seen.get(code).is_some_and(|count| *count > 5), "{code} is rare: {seen:?}");
    }
    let session = client.session().await;
    let token = client.take(&session, "after").await;
    client.release(&session, "after", token).await.ok();
    client.get("/readyz").await.ok();
}

#[tokio::test(flavor = "current_thread")]
async fn bytes_that_are_not_http_do_no_harm() {
    let (_node, client) = start().await;
    let mut dice = Dice(42);
    for _ in 0..200 {
        let noise: Vec<u8> = (0..dice.roll(300)).map(|_| dice.roll(256) as u8).collect();
        let mut stream = client.connect(&noise).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ =
            tokio::time::timeout(super::PATIENCE, stream.read_to_end(&mut answer)).await.expect("it ends");
        assert!(!answer.starts_with(b"HTTP/1.1 5"), "{}", String::from_utf8_lossy(&answer));
    }
    client.session().await;
}
