//! Nodes and what they say: the token is the czxid of an entry's node.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use zookeeper_client::{Client, CreateMode, Error as ZkError};

use super::Zookeeper;
use crate::capabilities::Finding;
use crate::engines::runtime::sessions::Ticket;
use crate::engines::runtime::{Claim, Failure, QueueEntry, Server, escape, unescape, wall_clock};
use crate::engines::weak_spots::clock_off;

/// An entry, read from its name.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) id: String,
    pub(super) claim: Claim,
    pub(super) sequence: i32,
}

impl Entry {
    /// `None` for a node that is none of ours.
    pub(super) fn parse(name: &str) -> Option<Entry> {
        let mut parts = name.split('_');
        let claim = parts.next()?.parse().ok()?;
        let _session = parts.next()?;
        let id = parts.next()?.to_owned();
        let sequence = parts.next()?.parse().ok()?;
        Some(Entry { name: name.to_owned(), id, claim, sequence })
    }
}

/// In order of their sequence numbers, which wrap around after 2^31.
pub(super) fn in_order(names: &[String]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = names.iter().filter_map(|name| Entry::parse(name)).collect();
    entries.sort_unstable_by(|a, b| a.sequence.wrapping_sub(b.sequence).cmp(&0));
    entries
}

impl Zookeeper {
    /// The node below which the entries of a lock are.
    pub(super) fn folder(&self, lock: &str) -> String {
        format!("{}/{}", self.root, escape(lock))
    }

    /// The path of an entry but for its sequence number.
    pub(super) fn entry_prefix(&self, client: &Client, ticket: &Ticket) -> String {
        let folder = self.folder(&ticket.lock);
        format!("{folder}/{}_{:016x}_{}_", ticket.claim, client.session_id().0, ticket.id)
    }

    /// Who it is, for people to read.
    pub(super) fn entry_value(&self, ticket: &Ticket) -> Vec<u8> {
        ticket.signed(&self.owner).into_bytes()
    }

    /// The entries of a lock, in order; none if there is no such lock.
    pub(super) async fn entries(&self, client: &Client, lock: &str) -> Result<Vec<Entry>, Failure> {
        match client.list_children(&self.folder(lock)).await {
            Ok(names) => Ok(in_order(&names)),
            Err(ZkError::NoNode) => Ok(Vec::new()),
            Err(error) => Err(self.failed(&error)),
        }
    }

    pub(super) async fn read_queue(&self, client: &Client, lock: &str) -> Result<Vec<QueueEntry>, Failure> {
        // A follower may be behind: first let it catch up.
        client.sync(&self.root).await.map_err(|error| self.failed(&error))?;
        let entries = self.entries(client, lock).await?;
        let folder = self.folder(lock);
        let paths: Vec<String> = entries.iter().map(|entry| format!("{folder}/{}", entry.name)).collect();
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
                format!("the ensemble has {} server(s): one that fails stops all locks", members.max(1)),
                "run three or five ZooKeeper servers",
            ));
        }
        findings.extend(clock_off(&self.address(), self.clock(client).await?));
        Ok(findings)
    }

    /// The leader's clock: when a node was created, by it.
    async fn clock(&self, client: &Client) -> Result<SystemTime, Failure> {
        let prefix = format!("{}/clock-", self.root.trim_end_matches("/locks"));
        let options = CreateMode::EphemeralSequential.with_acls(self.acls());
        let created = client.create(&prefix, &[], &options).await;
        let (stat, sequence) = created.map_err(|error| self.failed(&error))?;
        // If this fails, it goes with the session.
        let _ = client.delete(&format!("{prefix}{sequence}"), None).await;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_millis(stat.ctime.max(0).cast_unsigned()))
    }
}
