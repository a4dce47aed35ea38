//! Calls to Consul's HTTP API: which agent, who asks, and what its errors mean.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use reqwest::{Method, StatusCode};
use serde_json::Value as Json;
use tokio::sync::watch;

use crate::engines::runtime::Failure;
use crate::error::Error;
use crate::options::Options;

/// Connections that stay open with nothing to do, after a moment in which many were needed.
const IDLE_CONNECTIONS_MAX: usize = 32;

/// A client: one agent at a time, the next one when it does not answer.
pub(super) struct Client {
    hosts: Vec<String>,
    token: Option<String>,
    connect_timeout: Duration,
    /// Replaced with every generation: a connection that is not trusted is not used again.
    http: Mutex<reqwest::Client>,
    generation: watch::Sender<usize>,
}

/// An answer that is no error.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// X-Consul-Index.
    pub(super) index: u64,
    /// The agent's clock.
    pub(super) date: Option<SystemTime>,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn json(&self) -> Result<Json, Failure> {
        serde_json::from_str(&self.body)
            .map_err(|_| Failure::unreachable(format!("this is no answer of Consul: {}", short(&self.body))))
    }
}

impl Client {
    pub(super) fn new(hosts: Vec<String>, token: Option<String>, options: &Options) -> Result<Client, Error> {
        let http = Mutex::new(fresh(options.connect_timeout)?);
        let connect_timeout = options.connect_timeout;
        Ok(Client { hosts, token, connect_timeout, http, generation: watch::Sender::new(0) })
    }

    pub(super) fn address(&self) -> String {
        format!("Consul at {}", self.hosts.join(", "))
    }

    fn http(&self) -> MutexGuard<'_, reqwest::Client> {
        self.http.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn generation(&self) -> usize {
        *self.generation.borrow()
    }

    /// Goes to the next agent, unless somebody else has since this generation.
    pub(super) fn leave_link(&self, generation: usize) {
        let mut http = self.http();
        let moved = self.generation.send_if_modified(|current| {
            let is_first = *current == generation;
            if is_first {
                *current += 1;
            }
            is_first
        });
        if let (true, Ok(new)) = (moved, fresh(self.connect_timeout)) {
            *http = new;
        }
    }

    /// Resolves when there is another link than this one.
    pub(super) async fn link_left(&self, generation: usize) {
        let mut current = self.generation.subscribe();
        // The sender lives in here: it cannot be gone.
        let _ = current.wait_for(|current| *current != generation).await;
    }

    /// One call. 404 and 409 are answers; everything else that is no success is a failure.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Json>,
    ) -> Result<Answer, Failure> {
        let (generation, http) = {
            let http = self.http();
            (self.generation(), http.clone())
        };
        let host = &self.hosts[generation % self.hosts.len()];
        let mut request = http.request(method, format!("http://{host}{path}"));
        if let Some(token) = &self.token {
            request = request.header("X-Consul-Token", token);
        }
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        let lost = |error: reqwest::Error| {
            self.leave_link(generation);
            Failure::unreachable(told(&error))
        };
        let response = request.send().await.map_err(lost)?;
        let status = response.status();
        let index = response
            .headers()
            .get("X-Consul-Index")
            .and_then(|index| index.to_str().ok()?.parse().ok())
            .unwrap_or(0);
        let date = response.headers().get("Date").and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
        let body = response.text().await.map_err(lost)?;
        match status {
            StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(Answer { status, index, date, body }),
            status if status.is_success() => Ok(Answer { status, index, date, body }),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(Failure::Refused(self.forbidden(&body))),
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => {
                Err(Failure::Refused(Error::invalid(format!("Consul refuses this: {}", short(&body)))))
            }
            _ => {
                self.leave_link(generation);
                Err(Failure::unreachable(format!("{status}: {}", short(&body))))
            }
        }
    }

    fn forbidden(&self, body: &str) -> Error {
        let why = short(body);
        if self.token.is_none() {
            return Error::Unauthenticated(
                format!("{} wants to know who asks ({why}): write consul://:TOKEN@host:port", self.address())
                    .into(),
            );
        }
        if body.contains("ACL not found") {
            return Error::Unauthenticated(
                format!("{} does not know this token ({why})", self.address()).into(),
            );
        }
        Error::Forbidden(
            format!(
                "{} does not allow it ({why}): the token needs key:write on the locks and session:write",
                self.address()
            )
            .into(),
        )
    }
}

fn fresh(connect_timeout: Duration) -> Result<reqwest::Client, Error> {
    reqwest::Client::builder()
        .connect_timeout(connect_timeout)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .tcp_nodelay(true)
        .build()
        .map_err(|error| Error::Fatal(format!("no HTTP client could be made: {error}").into()))
}

/// The beginning of a text that may be long.
fn short(text: &str) -> String {
    text.trim().chars().take(200).collect()
}

/// An error with what caused it: the cause is what people need.
fn told(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// A key as part of a path.
pub(super) fn in_path(key: &str) -> String {
    use std::fmt::Write;
    let mut path = String::with_capacity(key.len() + 8);
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'~') {
            path.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(path, "%{byte:02X}");
        }
    }
    path
}
