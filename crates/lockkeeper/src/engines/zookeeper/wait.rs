//! Waiting: each waiter watches the nearest earlier node that blocks it.

use zookeeper_client::{Client, Error as ZkError};

use super::Zookeeper;
use super::token::sorted_entries;
use crate::engines::runtime::Failure;
use crate::engines::runtime::sessions::Ticket;

impl Zookeeper {
    /// Waits until the entry holds the lock; `None` if the entry no longer exists.
    pub(super) async fn wait_for_turn(
        &self,
        client: &Client,
        ticket: &Ticket,
    ) -> Result<Option<u64>, Failure> {
        let claim = ticket.claim;
        let parent = self.parent(&ticket.lock);
        loop {
            // Any change of the list may make room in a counted lock. For other locks, the list is not watched.
            let (names, list_watcher) = if claim.is_counted() {
                match client.list_and_watch_children(&parent).await {
                    Ok((names, watcher)) => (names, Some(watcher)),
                    Err(ZkError::NoNode) => return Ok(None),
                    Err(error) => return Err(self.failed(&error)),
                }
            } else {
                match client.list_children(&parent).await {
                    Ok(names) => (names, None),
                    Err(ZkError::NoNode) => return Ok(None),
                    Err(error) => return Err(self.failed(&error)),
                }
            };
            let entries = sorted_entries(&names);
            let Some(position) = entries.iter().position(|entry| entry.id == ticket.id) else {
                return Ok(None);
            };
            let earlier = &entries[..position];
            if claim.is_admitted_behind(earlier.iter().map(|entry| entry.claim))? {
                return Ok(ticket.place.get().copied());
            }
            if let Some(watcher) = list_watcher {
                watcher.changed().await;
                continue;
            }
            // An exclusive claim waits for the nearest earlier entry, a reader for the nearest earlier writer.
            let obstacle =
                earlier.iter().rev().find(|entry| claim.is_exclusive() || entry.claim.is_exclusive());
            if let Some(obstacle) = obstacle {
                self.deleted(client, &format!("{parent}/{}", obstacle.name)).await?;
            }
        }
    }

    /// Resolves when the entry no longer exists.
    pub(super) async fn wait_for_loss(&self, client: &Client, ticket: &Ticket) -> Result<(), Failure> {
        loop {
            let entries = self.entries(client, &ticket.lock).await?;
            match entries.into_iter().find(|entry| entry.id == ticket.id) {
                Some(entry) => {
                    self.deleted(client, &format!("{}/{}", self.parent(&ticket.lock), entry.name)).await?;
                }
                None => return Ok(()),
            }
        }
    }

    /// Resolves when a node is deleted or changed, or the session has ended.
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
