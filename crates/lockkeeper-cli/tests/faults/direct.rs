//! A client without a library: HTTP, its own request ids, its own deadline.

use std::time::Duration;

use lockkeeper_lab::checkers::history::Hold;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::LOCKS;
use crate::harness::http::{self, Answer};
use crate::harness::random::Random;
use crate::recorder::Recorder;

const TTL: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

struct Direct {
    number: u32,
    hosts: Vec<String>,
    recorder: Recorder,
    random: Random,
    session: Option<String>,
    /// Deadline of the session on the recorder's clock: time of sending + TTL - drift.
    deadline: Duration,
    requests: u64,
}

/// Runs until the end of the test.
pub(crate) async fn run(number: u32, hosts: Vec<String>, recorder: Recorder, random: Random) {
    let deadline = Duration::ZERO;
    let mut client = Direct { number, hosts, recorder, random, session: None, deadline, requests: 0 };
    while !client.recorder.is_over() {
        let Some(session) = client.session.clone() else {
            client.open().await;
            continue;
        };
        client.hold_once(&session).await;
    }
    if let Some(session) = client.session.clone() {
        client.call("/v1/session/close", &json!({"session": session})).await;
    }
}

fn deadline_after(sent: Duration) -> Duration {
    sent + TTL - TTL / 100 - Duration::from_millis(2)
}

impl Direct {
    /// Calls random nodes until one answers for the cell. For idempotent calls only.
    async fn call(&mut self, path: &str, body: &Value) -> Option<Answer> {
        let began = self.recorder.now();
        while self.recorder.now() - began < CALL_TIMEOUT {
            let host = self.random.one_of(&self.hosts).clone();
            match timeout(Duration::from_secs(2), http::post(&host, path, body)).await {
                Ok(Ok(answer)) if !matches!(answer.status, 421 | 503) => return Some(answer),
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        self.recorder.count("direct calls given up");
        None
    }

    async fn open(&mut self) {
        let sent = self.recorder.now();
        let body = json!({"ttl_ms": TTL.as_millis() as u64, "owner": format!("direct-{}", self.number)});
        let answer = self.call("/v1/session/open", &body).await;
        if let Some(answer) = answer.filter(|answer| answer.status == 200) {
            self.session = answer.body["session"].as_str().map(str::to_owned);
            // The answer may belong to a retry that was sent later, so this deadline is conservative.
            self.deadline = deadline_after(sent);
        }
    }

    async fn keep_alive(&mut self, session: &str) {
        let sent = self.recorder.now();
        match self.call("/v1/session/keepalive", &json!({"session": session})).await {
            Some(answer) if answer.status == 200 => self.deadline = deadline_after(sent),
            Some(_) => {
                self.session = None;
                self.recorder.count("direct sessions lost");
            }
            None => {}
        }
    }

    async fn hold_once(&mut self, session: &str) {
        self.keep_alive(session).await;
        let lock = *self.random.one_of(&LOCKS);
        self.requests += 1;
        let body = json!({
            "session": session, "lock": lock, "request": self.requests, "wait_ms": self.random.below(1_000)
        });
        let invoked = self.recorder.now();
        let Some(answer) = self.call("/v1/lock/acquire", &body).await else { return };
        match (answer.status, answer.code()) {
            (200, _) => {}
            (410, _) => {
                self.session = None;
                return;
            }
            (_, code) => return self.recorder.count(&format!("direct acquires {code}")),
        }
        let token = answer.body["token"].as_u64().unwrap();
        let from = self.recorder.grant(self.number, lock, token, invoked);
        let mut hold = Hold { client: self.number, lock: lock.to_owned(), token, from, until: from };
        tokio::time::sleep(Duration::from_millis(self.random.below(50))).await;
        let now = self.recorder.now();
        if now < self.deadline {
            hold.until = now;
        }
        // Late answers prove nothing: only a certain hold is recorded.
        if from < self.deadline {
            self.recorder.hold(hold);
        }
        let body = json!({"session": session, "lock": lock, "token": token});
        if let Some(answer) = self.call("/v1/lock/release", &body).await
            && answer.status == 410
        {
            self.session = None;
        }
    }
}
