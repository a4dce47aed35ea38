//! Sessions in Consul. A session expires unless it is renewed; nothing else ends it, because it has no health checks.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::Consul;
use super::client::encode_path;
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::engines::runtime::Failure;
use crate::engines::runtime::sessions::Opened;
use crate::error::Error;

/// A session.
pub(crate) struct ConsulSession {
    pub(super) id: String,
    pub(super) has_lock_delay: bool,
}

impl Consul {
    /// Tries the agents in turn until one answers or the timeout has passed.
    pub(super) async fn wait_until_reachable(&self, timeout: Duration) -> Result<(), Error> {
        let until = Moment::now().plus(timeout);
        let mut backoff = Backoff::default();
        loop {
            let generation = self.client.generation();
            let left = until.since(Moment::now());
            let why = match tokio::time::timeout(left, self.probe()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Failure::Refused(error))) => return Err(error),
                Ok(Err(Failure::Unreachable(why))) => why.to_string(),
                Ok(Err(Failure::Gone)) => "unexpected answer".to_owned(),
                Err(_) => format!("no answer within {timeout:?}"),
            };
            backoff.wait().await;
            if Moment::now() >= until {
                return Err(Error::unavailable(format!(
                    "{} does not answer ({why}): check that it is running, and that the port is Consul's HTTP port",
                    self.client.address()
                )));
            }
            self.client.switch_agent(generation);
        }
    }

    /// Checks that the server is Consul, has a leader, and allows us to read.
    async fn probe(&self) -> Result<(), Failure> {
        let answer = self.client.call(Method::GET, "/v1/status/leader", None).await?;
        let leader = answer.json().ok().and_then(|leader| leader.as_str().map(str::to_owned));
        match leader {
            Some(leader) if answer.status.is_success() && !leader.is_empty() => {}
            Some(_) if answer.status.is_success() => {
                return Err(Failure::unreachable("the cluster has no leader"));
            }
            _ => {
                return Err(Failure::Refused(Error::invalid(format!(
                    "the server that answers as {} is not Consul: check the address and the port",
                    self.client.address()
                ))));
            }
        }
        let probe = format!("/v1/kv/{}", encode_path(&self.key("probe")));
        self.client.call(Method::GET, &probe, None).await.map(|_| ())
    }

    pub(super) async fn create_session(
        &self,
        ttl: Duration,
        lock_delay: Duration,
    ) -> Result<Opened<ConsulSession>, Failure> {
        let body = json!({
            "Name": self.owner,
            "TTL": format!("{}ms", ttl.as_millis()),
            "LockDelay": format!("{}ms", lock_delay.as_millis()),
            "Behavior": if self.deletes { "delete" } else { "release" },
            // Not even the check of the agent itself, so that only the time to live decides.
            "NodeChecks": [],
        });
        let answer = self.client.call(Method::PUT, "/v1/session/create", Some(&body)).await?;
        let id = answer.json()?["ID"].as_str().map(str::to_owned);
        let id = id.ok_or_else(|| Failure::unreachable("Consul created a session without an ID"))?;
        Ok(Opened {
            id: id.clone(),
            session: ConsulSession { id, has_lock_delay: !lock_delay.is_zero() },
            ttl,
        })
    }

    pub(super) async fn renew_session(&self, session: &ConsulSession) -> Result<(), Failure> {
        let path = format!("/v1/session/renew/{}", session.id);
        let answer = self.client.call(Method::PUT, &path, None).await?;
        if answer.status == StatusCode::NOT_FOUND { Err(Failure::Gone) } else { Ok(()) }
    }

    pub(super) async fn destroy_session(&self, session: &ConsulSession) -> Result<(), Failure> {
        let path = format!("/v1/session/destroy/{}", session.id);
        self.client.call(Method::PUT, &path, None).await.map(|_| ())
    }
}
