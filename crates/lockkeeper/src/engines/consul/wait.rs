//! Waiting: a blocking query on the key, by the head of the line alone.

use std::time::Duration;

use reqwest::{Method, StatusCode};

use super::Consul;
use super::client::{Answer, in_path};
use super::lock::Tried;
use super::session::ConsulSession;
use super::token::Key;
use crate::backoff::random;
use crate::engines::runtime::sessions::Ticket;
use crate::engines::runtime::{Claim, Failure};

/// How long Consul holds back its answer; it adds up to a sixteenth.
const QUERY: Duration = Duration::from_secs(30);
/// How often a lock that is kept closed is tried, in milliseconds: half of it by chance.
const DELAYED_MS: u64 = 400;

impl Consul {
    pub(super) async fn wait_for_turn(
        &self,
        session: &ConsulSession,
        ticket: &Ticket,
    ) -> Result<u64, Failure> {
        let place = self.lines.join(&ticket.lock);
        let _head = place.head().await;
        let mut index = 0;
        loop {
            match self.try_lock(session, ticket).await? {
                Tried::Locked(token) => return Ok(token),
                Tried::Held => {
                    index = self.changed(&ticket.lock, index, |key| key.session.is_empty()).await?;
                }
                Tried::Shared { key, shares } => self.room_may_be_made(&ticket.lock, key, shares).await?,
                Tried::Delayed => {
                    let pause = DELAYED_MS / 2 + random(DELAYED_MS / 2);
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
            return self.wait_for_share_lost(session, ticket).await;
        }
        self.changed(&ticket.lock, 0, |key| key.session != session.id || key.id != ticket.id).await?;
        Ok(())
    }

    /// Resolves when the key is as wanted, and tells its index.
    pub(super) async fn changed(
        &self,
        lock: &str,
        mut index: u64,
        is_wanted: impl Fn(&Key) -> bool,
    ) -> Result<u64, Failure> {
        loop {
            let path = format!("/v1/kv/{}?consistent", in_path(&self.key(lock)));
            let answer = self.blocking(&path, index).await?;
            let key = match answer.status {
                StatusCode::NOT_FOUND => Key::default(),
                _ => Key::read(&answer.json()?[0]),
            };
            if is_wanted(&key) {
                return Ok(answer.index);
            }
            // An index that goes back is of a cluster that was restored: begin anew.
            index = if answer.index < index { 0 } else { answer.index };
        }
    }

    /// A question whose answer Consul holds back until there is something after this index, or for a while.
    pub(super) async fn blocking(&self, path: &str, index: u64) -> Result<Answer, Failure> {
        let path = format!("{path}&index={index}&wait={}s", QUERY.as_secs());
        let generation = self.client.generation();
        tokio::select! {
            // A connection that is not trusted any more does not tell of its own end.
            () = self.client.link_left(generation) => Err(Failure::unreachable("the agent does not answer")),
            answer = self.client.call(Method::GET, &path, None) => answer,
        }
    }
}
