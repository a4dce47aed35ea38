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
const GIVES_UP_AFTER: Duration = Duration::from_secs(20);

struct Direct {
    number: u32,
    hosts: Vec<String>,
    recorder: Recorder,
    random: Random,
    session: Option<String>,
    /// On the recorder's clock: it was sent then, and lasts so long, less what clocks may differ by.
    deadline: Duration,
    requests: u64,
}

/// Works until it is over.
pub(crate) async fn run(number: u32, hosts: Vec<String>, recorder: Recorder, random: Random) {
    let deadline = Duration::ZERO;
    let mut client = Direct { number, hosts, recorder, random, session: None, deadline, requests: 0 };
    while !client.recorder.is_over() {
        let Some(session) = client.session.clone() else {
            client.open().await;
            continue;
        };
        client.turn(&session).await;
    }
    if let Some(session) = client.session.clone() {
        client.ask("/v1/session/close", &json!({"session": session})).await;
    }
}

fn lease(sent: Duration) -> Duration {
    sent + TTL - TTL / 100 - Duration::from_millis(2)
}

impl Direct {
    /// Asks one node after the other until one answers for the cell. Only for what may be repeated.
    async fn ask(&mut self, path: &str, body: &Value) -> Option<Answer> {
        let began = self.recorder.now();
        while self.recorder.now() - began < GIVES_UP_AFTER {
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
        let answer = self.ask("/v1/session/open", &body).await;
        if let Some(answer) = answer.filter(|answer| answer.status == 200) {
            self.session = answer.body["session"].as_str().map(str::to_owned);
            // The answer may be that of a repeated call, which was sent later: this is the safe side.
            self.deadline = lease(sent);
        }
    }

    async fn keep_alive(&mut self, session: &str) {
        let sent = self.recorder.now();
        match self.ask("/v1/session/keepalive", &json!({"session": session})).await {
            Some(answer) if answer.status == 200 => self.deadline = lease(sent),
            Some(_) => {
                self.session = None;
                self.recorder.count("direct sessions lost");
            }
            None => {}
        }
    }

    async fn turn(&mut self, session: &str) {
        self.keep_alive(session).await;
        let lock = *self.random.one_of(&LOCKS);
        self.requests += 1;
        let body = json!({
            "session": session, "lock": lock, "request": self.requests, "wait_ms": self.random.below(1_000)
        });
        let asked = self.recorder.now();
        let Some(answer) = self.ask("/v1/lock/acquire", &body).await else { return };
        match (answer.status, answer.code()) {
            (200, _) => {}
            (410, _) => {
                self.session = None;
                return;
            }
            (_, code) => return self.recorder.count(&format!("direct acquires {code}")),
        }
        let token = answer.body["token"].as_u64().unwrap();
        let from = self.recorder.grant(self.number, lock, token, asked);
        let mut hold = Hold { client: self.number, lock: lock.to_owned(), token, from, until: from };
        tokio::time::sleep(Duration::from_millis(self.random.below(50))).await;
        let now = self.recorder.now();
        if now < self.deadline {
            hold.until = now;
        }
        // Late answers are no proof: only what was surely held counts.
        if from < self.deadline {
            self.recorder.hold(hold);
        }
        let body = json!({"session": session, "lock": lock, "token": token});
        if let Some(answer) = self.ask("/v1/lock/release", &body).await
            && answer.status == 410
        {
            self.session = None;
        }
    }
}
