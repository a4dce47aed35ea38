//! Entering and leaving the queue of a lock.

use std::sync::atomic::Ordering;

use lockkeeper_core::admission;
use zookeeper_client::{Client, CreateMode, Error as ZkError};

use super::Zookeeper;
use super::token::{Entry, sorted_entries};
use crate::engines::runtime::Failure;
use crate::engines::runtime::sessions::{Entered, Ticket, Try};
use crate::view::ForcedRelease;

impl Zookeeper {
    pub(super) async fn enter_queue(
        &self,
        client: &Client,
        ticket: &Ticket,
        mode: Try,
    ) -> Result<Entered, Failure> {
        let (parent, prefix) = (self.parent(&ticket.lock), self.entry_prefix(client, ticket));
        if ticket.in_doubt.load(Ordering::Relaxed)
            && let Some(own) = self.find(client, ticket).await?
        {
            // An earlier attempt has created the entry, and its answer was lost.
            let path = format!("{parent}/{}", own.name);
            return match client.check_stat(&path).await.map_err(|error| self.failed(&error))? {
                Some(stat) => {
                    let _ = ticket.place.set(stat.czxid.cast_unsigned());
                    let entries = self.entries(client, &ticket.lock).await?;
                    self.entered(client, ticket, mode, &entries).await
                }
                None => Err(Failure::unreachable("the entry no longer exists")),
            };
        }
        loop {
            let options = CreateMode::EphemeralSequential.with_acls(self.acls());
            let value = self.entry_value(ticket);
            // Both requests are sent at once. ZooKeeper processes the requests of a client in order, so the list contains the
            // entry.
            let created = client.create(&prefix, &value, &options);
            let listed = client.list_children(&parent);
            let (created, listed) = tokio::join!(created, listed);
            match created {
                Ok((stat, sequence)) => {
                    let _ = ticket.path.set(format!("{prefix}{sequence}"));
                    let _ = ticket.place.set(stat.czxid.cast_unsigned());
                }
                Err(ZkError::NoNode) => {
                    self.create_parent(client, &parent).await?;
                    continue;
                }
                Err(error) => return Err(self.failed(&error)),
            }
            let names = listed.map_err(|error| {
                ticket.in_doubt.store(true, Ordering::Relaxed);
                self.failed(&error)
            })?;
            return self.entered(client, ticket, mode, &sorted_entries(&names)).await;
        }
    }

    /// Creates the parent node of a lock's entries: a container, which ZooKeeper removes some time after its last child.
    async fn create_parent(&self, client: &Client, parent: &str) -> Result<(), Failure> {
        let container = CreateMode::Container.with_acls(self.acls());
        let created = match client.create(parent, &[], &container).await {
            // ZooKeeper before 3.5 has no containers.
            Err(ZkError::Unimplemented) => {
                let persistent = CreateMode::Persistent.with_acls(self.acls());
                client.create(parent, &[], &persistent).await
            }
            created => created,
        };
        match created {
            Ok(_) | Err(ZkError::NodeExists) => Ok(()),
            Err(ZkError::NoNode) => {
                let persistent = CreateMode::Persistent.with_acls(self.acls());
                client.mkdir(&self.root, &persistent).await.map_err(|error| self.failed(&error))
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// The result of entering the queue, given its entries in order.
    async fn entered(
        &self,
        client: &Client,
        ticket: &Ticket,
        mode: Try,
        entries: &[Entry],
    ) -> Result<Entered, Failure> {
        let earlier = entries.iter().take_while(|entry| entry.id != ticket.id).map(|entry| entry.claim);
        if ticket.claim.is_admitted_behind(earlier)? {
            return Ok(Entered::Holds(ticket.place.get().copied().unwrap_or_default()));
        }
        if mode == Try::Queue {
            return Ok(Entered::Waits);
        }
        self.leave_queue(client, ticket).await?;
        Ok(Entered::Busy)
    }

    /// Finds the entry of a ticket by its ID.
    async fn find(&self, client: &Client, ticket: &Ticket) -> Result<Option<Entry>, Failure> {
        // After a reconnect, the server may lag behind the previous one.
        client.sync(&self.root).await.map_err(|error| self.failed(&error))?;
        let entries = self.entries(client, &ticket.lock).await?;
        Ok(entries.into_iter().find(|entry| entry.id == ticket.id))
    }

    pub(super) async fn leave_queue(&self, client: &Client, ticket: &Ticket) -> Result<bool, Failure> {
        if let (Some(path), false) = (ticket.path.get(), ticket.in_doubt.load(Ordering::Relaxed)) {
            return self.delete(client, path).await;
        }
        let Some(entry) = self.find(client, ticket).await? else { return Ok(false) };
        self.delete(client, &format!("{}/{}", self.parent(&ticket.lock), entry.name)).await
    }

    async fn delete(&self, client: &Client, path: &str) -> Result<bool, Failure> {
        match client.delete(path, None).await {
            Ok(()) => Ok(true),
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(self.failed(&error)),
        }
    }

    pub(super) async fn delete_holders(&self, client: &Client, lock: &str) -> Result<ForcedRelease, Failure> {
        client.sync(&self.root).await.map_err(|error| self.failed(&error))?;
        let parent = self.parent(lock);
        let entries = self.entries(client, lock).await?;
        let holding = admission::holders(entries.iter().map(|entry| entry.claim.demand));
        let mut holders = 0;
        for entry in &entries[..holding] {
            if self.delete(client, &format!("{parent}/{}", entry.name)).await? {
                holders += 1;
            }
        }
        // The pzxid is the transaction that last changed the children: every later entry has a greater czxid.
        let stat = client.check_stat(&parent).await.map_err(|error| self.failed(&error))?;
        Ok(ForcedRelease { holders, last_token: stat.map_or(0, |stat| stat.pzxid.cast_unsigned()) })
    }
}
