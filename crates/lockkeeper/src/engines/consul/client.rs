//! The client for Consul's HTTP API: choice of the agent, authentication, conversion of errors.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use reqwest::{Method, StatusCode};
use serde_json::Value as Json;
use tokio::sync::watch;

use crate::engines::runtime::Failure;
use crate::error::Error;
use crate::options::Options;

/// The limit of idle connections in the pool.
const IDLE_CONNECTIONS_MAX: usize = 32;

/// A client that uses one agent at a time, and switches to the next if it fails.
pub(super) struct Client {
    hosts: Vec<String>,
    token: Option<String>,
    connect_timeout: Duration,
    /// Replaced in every generation, so that no connection to the previous agent is used again.
    http: Mutex<reqwest::Client>,
    /// Incremented by each switch to another agent.
    generation: watch::Sender<usize>,
}

/// An answer that is not an error.
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
            .map_err(|_| Failure::unreachable(format!("unexpected answer: {}", truncate(&self.body))))
    }
}

impl Client {
    pub(super) fn new(hosts: Vec<String>, token: Option<String>, options: &Options) -> Result<Client, Error> {
        let http = Mutex::new(build_http_client(options.connect_timeout)?);
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

    /// Switches to the next agent, unless another task has done so since this generation.
    pub(super) fn switch_agent(&self, generation: usize) {
        let mut http = self.http();
        let switched = self.generation.send_if_modified(|current| {
            let is_first = *current == generation;
            if is_first {
                *current += 1;
            }
            is_first
        });
        if let (true, Ok(new)) = (switched, build_http_client(self.connect_timeout)) {
            *http = new;
        }
    }

    /// Resolves when the client has switched to another agent since this generation.
    pub(super) async fn switched(&self, generation: usize) {
        let mut current = self.generation.subscribe();
        // The sender is in `self`, so it cannot be dropped.
        let _ = current.wait_for(|current| *current != generation).await;
    }

    /// Sends a request. The statuses 404 and 409 are answers; all others except success are failures.
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
        let failed = |error: reqwest::Error| {
            self.switch_agent(generation);
            Failure::unreachable(root_cause(&error))
        };
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        let index = response
            .headers()
            .get("X-Consul-Index")
            .and_then(|index| index.to_str().ok()?.parse().ok())
            .unwrap_or(0);
        let date = response.headers().get("Date").and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
        let body = response.text().await.map_err(failed)?;
        match status {
            StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(Answer { status, index, date, body }),
            status if status.is_success() => Ok(Answer { status, index, date, body }),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(Failure::Refused(self.forbidden(&body))),
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => Err(Failure::Refused(Error::invalid(
                format!("Consul rejects the request: {}", truncate(&body)),
            ))),
            _ => {
                self.switch_agent(generation);
                Err(Failure::unreachable(format!("{status}: {}", truncate(&body))))
            }
        }
    }

    fn forbidden(&self, body: &str) -> Error {
        let why = truncate(body);
        let address = self.address();
        if self.token.is_none() {
            return Error::Unauthenticated(
                format!("{address} requires an ACL token ({why}): write consul://:TOKEN@host:port").into(),
            );
        }
        if body.contains("ACL not found") {
            return Error::Unauthenticated(
                format!("{address} does not know this ACL token ({why}): check the token in the URL").into(),
            );
        }
        Error::Forbidden(
            format!(
                "{address} denies permission ({why}): grant the token key:write for the keys of locks, and session:write"
            )
            .into(),
        )
    }
}

fn build_http_client(connect_timeout: Duration) -> Result<reqwest::Client, Error> {
    reqwest::Client::builder()
        .connect_timeout(connect_timeout)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .tcp_nodelay(true)
        .build()
        .map_err(|error| Error::Fatal(format!("failed to create an HTTP client: {error}").into()))
}

/// The beginning of a text.
fn truncate(text: &str) -> String {
    text.trim().chars().take(200).collect()
}

/// The text of the innermost cause, because reqwest's own text says little.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Percent-encodes a key for the path of a URL.
pub(super) fn encode_path(key: &str) -> String {
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
