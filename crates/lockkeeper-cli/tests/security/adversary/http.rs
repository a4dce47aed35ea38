//! Every call of the HTTP interface.

use std::io;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::attacks::{Adversary, UNREAD_FOR};
use super::holdings::{Holdings, candidate, waiting_request};
use super::operations::{CROWDED, VALUE, long};

/// The protocol, as counted.
pub const HTTP: &str = "HTTP";

/// Whether only administrators may make this call.
pub fn is_administrative(call: &str) -> bool {
    let path = call.split(' ').nth(1).unwrap_or_default();
    ["/v1/access", "/v1/member/", "/v1/snapshot"].iter().any(|prefix| path.starts_with(prefix))
}

/// The queries of GET calls: the path of the contract, and the rest of the target.
const QUERIES: [(&str, &str); 27] = [
    ("/v1/locks", "?limit=1000"),
    ("/v1/lock", "?name=adversary/crowded"),
    ("/v1/graph", ""),
    ("/v1/top", "?limit=100"),
    ("/v1/sessions", "?limit=1000"),
    ("/v1/sessions", "?limit=1000&owner=nobody"),
    ("/v1/history", "?name=adversary/crowded"),
    ("/v1/audit", "?limit=1000000"),
    ("/v1/value", "?key=adversary/value"),
    ("/v1/election", "?name=adversary/0"),
    ("/v1/election/observe", "?name=adversary/0"),
    ("/v1/status", ""),
    ("/v1/members", ""),
    ("/v1/snapshot", ""),
    ("/v1/access", ""),
    ("/v1/openapi.json", ""),
    ("/openapi.json", ""),
    ("/metrics", ""),
    ("/livez", ""),
    ("/readyz", "?verbose"),
    ("/health", "?verbose"),
    ("/version", ""),
    ("/", ""),
    ("/console/events", "?view=graph"),
    ("/console/events", "?view=lock&name=adversary/crowded"),
    ("/console/events", "?view=sessions&owner=nobody"),
    ("/console/{file}", "app.js"),
];

/// The target of a GET call.
fn target(path: &str, rest: &str) -> String {
    format!("{}{rest}", path.trim_end_matches("{file}"))
}

/// The targets of all GET calls.
pub fn reads() -> Vec<String> {
    QUERIES.iter().map(|(path, rest)| target(path, rest)).collect()
}

/// Calls that leave what the adversary holds, and those of administrators.
fn repeatable(session: &str, holdings: &Holdings) -> Vec<(&'static str, Value)> {
    let number = holdings.number;
    let all: Vec<String> = (0..100).map(|place| long("all-of-http", 100 * number + place)).collect();
    vec![
        ("/v1/session/open", json!({"ttl_ms": 1_000, "owner": "o".repeat(500)})),
        ("/v1/session/keepalive", json!({"session": session})),
        ("/v1/lock/acquire", json!({"session": session, "lock": CROWDED, "wait_ms": 100})),
        ("/v1/lock/acquire", json!({"session": holdings.holder, "lock": long("http", number)})),
        ("/v1/lock/acquire_all", json!({"session": holdings.holder, "locks": all})),
        ("/v1/token/check", json!({"lock": CROWDED, "token": 1})),
        ("/v1/value/put", json!({"key": VALUE, "value": "\u{e9}".repeat(30_000)})),
        // Twice the maximum size of a body.
        ("/v1/value/put", json!({"key": VALUE, "value": "v".repeat(512 << 10)})),
        (
            "/v1/election/campaign",
            json!({"session": holdings.holder, "election": format!("adversary/http/{number}"), "value": candidate()}),
        ),
        ("/v1/rate/take", json!({"limiter": long("rate", number), "rate_per_s": 1, "burst": 1})),
        ("/v1/access/enable", json!({"identity": "adversary"})),
        ("/v1/access/grant", json!({"identity": "adversary", "prefix": "", "rights": ["admin"]})),
        ("/v1/access/revoke", json!({"identity": "victim", "prefix": ""})),
        ("/v1/access/token/create", json!({"identity": "victim"})),
        ("/v1/access/token/revoke", json!({"id": "0".repeat(12)})),
        ("/v1/access/quota", json!({"namespace": "victim", "locks": 1})),
        ("/v1/member/add", json!({"node_id": 2, "address": "127.0.0.1:1"})),
        ("/v1/member/remove", json!({"node_id": 1})),
    ]
}

/// Calls that use up what the adversary holds.
fn ends(holdings: &Holdings) -> Vec<(&'static str, Value)> {
    let session = &holdings.holder;
    let (handed_over, epoch) = &holdings.handed_over;
    let (resigned, resigned_epoch) = &holdings.resigned;
    let releases = holdings
        .held
        .iter()
        .map(|(lock, token)| ("/v1/lock/release", json!({"session": session, "lock": lock, "token": token})));
    let others = [
        (
            "/v1/election/handover",
            json!({"session": session, "election": handed_over, "epoch": epoch, "to": candidate()}),
        ),
        ("/v1/election/resign", json!({"session": session, "election": resigned, "epoch": resigned_epoch})),
        ("/v1/lock/force_release", json!({"lock": holdings.crowd, "reason": "r".repeat(1_000)})),
        ("/v1/value/delete", json!({"key": holdings.value})),
        ("/v1/session/close", json!({"session": holdings.full})),
    ];
    releases.chain(others).collect()
}

impl Adversary {
    pub async fn over_http(self) {
        loop {
            let holdings = self.holdings().await;
            let cancel = json!({"session": holdings.waiter, "request": waiting_request(0)});
            let first = [("/v1/lock/cancel", cancel)].into_iter().chain(repeatable(&self.session, &holdings));
            join_all(QUERIES.iter().map(|(path, rest)| self.read("GET", path, rest))).await;
            join_all(QUERIES.iter().map(|(path, rest)| self.read("HEAD", path, rest))).await;
            join_all(first.map(|(path, body)| self.post(path, body))).await;
            join_all(ends(&holdings).into_iter().map(|(path, body)| self.post(path, body))).await;
        }
    }

    async fn read(&self, method: &str, path: &str, rest: &str) {
        let status = self.status(method, &target(path, rest), "").await;
        self.tally.add(HTTP, &format!("{method} {path}"), status.is_ok_and(|status| status == 200));
    }

    async fn post(&self, path: &str, body: Value) {
        let status = self.status("POST", path, &body.to_string()).await;
        self.tally.add(HTTP, &format!("POST {path}"), status.is_ok_and(|status| status == 200));
    }

    /// The status of an answer, which may be an endless stream of events: it is read for a while.
    async fn status(&self, method: &str, target: &str, body: &str) -> io::Result<u16> {
        let mut stream = self.connect().await;
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.token(),
            body.len()
        );
        stream.write_all((head + body).as_bytes()).await?;
        let mut answer = Vec::new();
        let read = async { while stream.read_buf(&mut answer).await.is_ok_and(|count| count > 0) {} };
        drop(tokio::time::timeout(4 * UNREAD_FOR, read).await);
        let status = answer.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
        status.and_then(|digits| digits.parse().ok()).ok_or(io::ErrorKind::UnexpectedEof.into())
    }
}
