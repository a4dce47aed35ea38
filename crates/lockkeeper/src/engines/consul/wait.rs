//! Waiting: the head of the keeper's queue has a blocking query on the lock's key.

use std::time::Duration;

use reqwest::{Method, StatusCode};

use super::Consul;
use super::client::{Answer, encode_path};
use super::lock::Attempt;
use super::session::ConsulSession;
use super::token::Key;
use crate::backoff::random;
use crate::engines::runtime::sessions::Ticket;
use crate::engines::runtime::{Claim, Failure};

/// The timeout of a blocking query; Consul adds up to a sixteenth.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest delay between attempts during a lock-delay; half of it is random.
const LOCK_DELAY_POLL_MS: u64 = 400;

impl Consul {
    pub(super) async fn wait_for_turn(
        &self,
        session: &ConsulSession,
        ticket: &Ticket,
    ) -> Result<u64, Failure> {
        let place = self.queues.join(&ticket.lock);
        let _head = place.head().await;
        let mut index = 0;
        loop {
            match self.try_lock(session, ticket).await? {
                Attempt::Locked(token) => return Ok(token),
                Attempt::Held => {
                    index = self.changed(&ticket.lock, index, |key| key.session.is_empty()).await?;
                }
                Attempt::Shared { key, shares } => self.shares_changed(&ticket.lock, key, shares).await?,
                Attempt::Delayed => {
                    let pause = LOCK_DELAY_POLL_MS / 2 + random(LOCK_DELAY_POLL_MS / 2);
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            }
        }
    }

    /// Resolves when the ticket no longer holds the key.
    pub(super) async fn wait_for_loss(
        &self,
        session: &ConsulSession,
        ticket: &Ticket,
    ) -> Result<(), Failure> {
        if ticket.claim != Claim::EXCLUSIVE {
            return self.wait_for_share_loss(session, ticket).await;
        }
        self.changed(&ticket.lock, 0, |key| key.session != session.id || key.id != ticket.id).await?;
        Ok(())
    }

    /// Resolves with the index of the key when the key fulfils a condition.
    pub(super) async fn changed(
        &self,
        lock: &str,
        mut index: u64,
        condition: impl Fn(&Key) -> bool,
    ) -> Result<u64, Failure> {
        loop {
            let path = format!("/v1/kv/{}?consistent", encode_path(&self.key(lock)));
            let answer = self.blocking_query(&path, index).await?;
            let key = match answer.status {
                StatusCode::NOT_FOUND => Key::default(),
                _ => Key::read(&answer.json()?[0]),
            };
            if condition(&key) {
                return Ok(answer.index);
            }
            // A smaller index means that the cluster was restored from a snapshot: start without an index.
            index = if answer.index < index { 0 } else { answer.index };
        }
    }

    /// A blocking query: Consul answers when there is a change after this index, or after a timeout.
    pub(super) async fn blocking_query(&self, path: &str, index: u64) -> Result<Answer, Failure> {
        let path = format!("{path}&index={index}&wait={}s", QUERY_TIMEOUT.as_secs());
        let generation = self.client.generation();
        tokio::select! {
            // A dead connection may never report its end.
            () = self.client.switched(generation) => Err(Failure::unreachable("the agent does not answer")),
            answer = self.client.call(Method::GET, &path, None) => answer,
        }
    }
}
