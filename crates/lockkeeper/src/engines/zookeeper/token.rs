//! Nodes and their names. The token is the czxid of an entry's node.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use zookeeper_client::{Client, CreateMode, Error as ZkError};

use super::Zookeeper;
use crate::capabilities::Finding;
use crate::engines::runtime::sessions::Ticket;
use crate::engines::runtime::{Claim, Failure, QueueEntry, Server, escape, unescape, wall_clock};
use crate::engines::weak_spots::clock_off;

/// An entry of a queue, parsed from the name of its node.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) id: String,
    pub(super) claim: Claim,
    pub(super) sequence: i32,
}

impl Entry {
    /// `None` for a node that is not an entry.
    pub(super) fn parse(name: &str) -> Option<Entry> {
        let mut parts = name.split('_');
        let claim = parts.next()?.parse().ok()?;
        let _session = parts.next()?;
        let id = parts.next()?.to_owned();
        let sequence = parts.next()?.parse().ok()?;
        Some(Entry { name: name.to_owned(), id, claim, sequence })
    }
}

/// The entries among the names, in order of their sequence numbers, which wrap around after 2^31.
pub(super) fn sorted_entries(names: &[String]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = names.iter().filter_map(|name| Entry::parse(name)).collect();
    entries.sort_unstable_by(|a, b| a.sequence.wrapping_sub(b.sequence).cmp(&0));
    entries
}

impl Zookeeper {
    /// The parent node of a lock's entries.
    pub(super) fn parent(&self, lock: &str) -> String {
        format!("{}/{}", self.root, escape(lock))
    }

    /// The path of an entry without its sequence number.
    pub(super) fn entry_prefix(&self, client: &Client, ticket: &Ticket) -> String {
        let parent = self.parent(&ticket.lock);
        format!("{parent}/{}_{:016x}_{}_", ticket.claim, client.session_id().0, ticket.id)
    }

    /// The data of an entry's node: its owner.
    pub(super) fn entry_value(&self, ticket: &Ticket) -> Vec<u8> {
        ticket.owner_with_value(&self.owner).into_bytes()
    }

    /// The entries of a lock, in order; none if there is no such lock.
    pub(super) async fn entries(&self, client: &Client, lock: &str) -> Result<Vec<Entry>, Failure> {
        match client.list_children(&self.parent(lock)).await {
            Ok(names) => Ok(sorted_entries(&names)),
            Err(ZkError::NoNode) => Ok(Vec::new()),
            Err(error) => Err(self.failed(&error)),
        }
    }

    pub(super) async fn read_queue(&self, client: &Client, lock: &str) -> Result<Vec<QueueEntry>, Failure> {
        // The server may be a follower that lags: `sync` lets it catch up.
        client.sync(&self.root).await.map_err(|error| self.failed(&error))?;
        let entries = self.entries(client, lock).await?;
        let parent = self.parent(lock);
        let paths: Vec<String> = entries.iter().map(|entry| format!("{parent}/{}", entry.name)).collect();
        let read = join_all(paths.iter().map(|path| client.get_data(path))).await;
        let mut queue = Vec::with_capacity(entries.len());
        for (entry, read) in entries.into_iter().zip(read) {
            match read {
                Ok((data, stat)) => queue.push(QueueEntry {
                    session: format!("{:016x}", stat.ephemeral_owner),
                    owner: String::from_utf8_lossy(&data).into_owned(),
                    claim: entry.claim,
                    token: stat.czxid.cast_unsigned(),
                    since: wall_clock()
                        .saturating_sub(Duration::from_millis(stat.ctime.max(0).cast_unsigned())),
                }),
                Err(ZkError::NoNode) => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Ok(queue)
    }

    pub(super) async fn read_names(&self, client: &Client) -> Result<Vec<String>, Failure> {
        client.sync(&self.root).await.map_err(|error| self.failed(&error))?;
        let names = client.list_children(&self.root).await.map_err(|error| self.failed(&error))?;
        Ok(names.iter().filter_map(|name| unescape(name)).collect())
    }

    pub(super) async fn find_weak_spots(&self, client: &Client) -> Result<Vec<Finding>, Failure> {
        let mut findings = Vec::new();
        let members = match client.get_config().await {
            Ok((config, _)) => {
                String::from_utf8_lossy(&config).lines().filter(|line| line.starts_with("server.")).count()
            }
            Err(ZkError::NoNode) => 0,
            Err(error) => return Err(self.failed(&error)),
        };
        if members < 3 {
            findings.push(Finding::new(
                "single-node",
                format!(
                    "the ensemble has {} server(s): the failure of one makes all locks unavailable",
                    members.max(1)
                ),
                "run three or five ZooKeeper servers",
            ));
        }
        findings.extend(clock_off(&self.address(), self.clock(client).await?));
        Ok(findings)
    }

    /// The leader's clock, from the creation time of a new node.
    async fn clock(&self, client: &Client) -> Result<SystemTime, Failure> {
        let prefix = format!("{}/clock-", self.root.trim_end_matches("/locks"));
        let options = CreateMode::EphemeralSequential.with_acls(self.acls());
        let created = client.create(&prefix, &[], &options).await;
        let (stat, sequence) = created.map_err(|error| self.failed(&error))?;
        // If this fails, the node is removed with the session.
        let _ = client.delete(&format!("{prefix}{sequence}"), None).await;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_millis(stat.ctime.max(0).cast_unsigned()))
    }
}
