//! Waiting: for the one before, and for nobody else.

use zookeeper_client::{Client, Error as ZkError};

use super::Zookeeper;
use super::token::in_order;
use crate::engines::runtime::Failure;
use crate::engines::runtime::sessions::Ticket;

impl Zookeeper {
    /// Waits until the entry is let in; `None` if it is no longer there.
    pub(super) async fn wait_for_turn(
        &self,
        client: &Client,
        ticket: &Ticket,
    ) -> Result<Option<u64>, Failure> {
        let claim = ticket.claim;
        let folder = self.folder(&ticket.lock);
        loop {
            // Any of them may make room in a counted lock; otherwise the list itself needs no watch.
            let (names, any) = if claim.is_counted() {
                match client.list_and_watch_children(&folder).await {
                    Ok((names, watcher)) => (names, Some(watcher)),
                    Err(ZkError::NoNode) => return Ok(None),
                    Err(error) => return Err(self.failed(&error)),
                }
            } else {
                match client.list_children(&folder).await {
                    Ok(names) => (names, None),
                    Err(ZkError::NoNode) => return Ok(None),
                    Err(error) => return Err(self.failed(&error)),
                }
            };
            let entries = in_order(&names);
            let Some(place) = entries.iter().position(|entry| entry.id == ticket.id) else { return Ok(None) };
            let earlier = &entries[..place];
            if claim.is_admitted_behind(earlier.iter().map(|entry| entry.claim))? {
                return Ok(ticket.place.get().copied());
            }
            if let Some(any) = any {
                any.changed().await;
                continue;
            }
            // Whoever wants all of it waits for the nearest before it, a reader for the nearest writer.
            let obstacle =
                earlier.iter().rev().find(|entry| claim.is_exclusive() || entry.claim.is_exclusive());
            if let Some(obstacle) = obstacle {
                self.deleted(client, &format!("{folder}/{}", obstacle.name)).await?;
            }
        }
    }

    /// Resolves when the entry is no longer there.
    pub(super) async fn wait_for_loss(&self, client: &Client, ticket: &Ticket) -> Result<(), Failure> {
        loop {
            let entries = self.entries(client, &ticket.lock).await?;
            match entries.into_iter().find(|entry| entry.id == ticket.id) {
                Some(entry) => {
                    self.deleted(client, &format!("{}/{}", self.folder(&ticket.lock), entry.name)).await?;
                }
                None => return Ok(()),
            }
        }
    }

    /// Resolves when a node is gone, or the session is.
    async fn deleted(&self, client: &Client, path: &str) -> Result<(), Failure> {
        match client.get_and_watch_data(path).await {
            Ok((_, _, watcher)) => {
                watcher.changed().await;
                Ok(())
            }
            Err(ZkError::NoNode) => Ok(()),
            Err(error) => Err(self.failed(&error)),
        }
    }
}
