//! The key of a lock and its value. The token is the key's LockIndex.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Method, StatusCode};
use serde_json::{Value as Json, json};

use super::Consul;
use super::client::encode_path;
use super::share::Share;
use crate::capabilities::Finding;
use crate::engines::runtime::sessions::Ticket;
use crate::engines::runtime::{Claim, Failure, QueueEntry, escape, unescape, wall_clock};
use crate::engines::weak_spots::clock_off;

/// The value of the lock's key if shares may exist, which then have to be read too.
pub(super) const SHARED: &str = "shared";

/// The key of a lock, as read.
#[derive(Debug, Clone, Default)]
pub(super) struct Key {
    /// Empty while it is free.
    pub(super) session: String,
    pub(super) lock_index: u64,
    /// 0 if there is no such key.
    pub(super) modify_index: u64,
    /// The ticket that holds it.
    pub(super) id: String,
    /// The lock is not held exclusively, but shares may exist.
    pub(super) is_shared: bool,
    since: Duration,
    owner: String,
}

impl Key {
    pub(super) fn read(json: &Json) -> Key {
        let value = json["Value"].as_str().and_then(|value| STANDARD.decode(value).ok()).unwrap_or_default();
        let value = String::from_utf8_lossy(&value).into_owned();
        let is_shared = value == SHARED;
        let mut parts = value.splitn(3, ' ');
        let since = parts.next().and_then(|since| since.parse().ok()).unwrap_or(0);
        Key {
            session: json["Session"].as_str().unwrap_or_default().to_owned(),
            lock_index: json["LockIndex"].as_u64().unwrap_or(0),
            modify_index: json["ModifyIndex"].as_u64().unwrap_or(0),
            id: parts.next().unwrap_or_default().to_owned(),
            is_shared,
            since: Duration::from_millis(since),
            owner: parts.next().unwrap_or_default().to_owned(),
        }
    }
}

impl Consul {
    /// The key of a lock. The name is escaped, because `..` would change the path.
    pub(super) fn key(&self, lock: &str) -> String {
        format!("{}/locks/{}", self.root, escape(lock))
    }

    /// The value of a held key: since when, the ticket's ID, and the owner.
    pub(super) fn value(&self, ticket: &Ticket) -> String {
        STANDARD.encode(format!(
            "{} {} {}",
            wall_clock().as_millis(),
            ticket.id,
            ticket.owner_with_value(&self.owner)
        ))
    }

    /// Reads the key of a lock from the leader.
    pub(super) async fn read(&self, lock: &str) -> Result<Key, Failure> {
        let path = format!("/v1/kv/{}?consistent", encode_path(&self.key(lock)));
        let answer = self.client.call(Method::GET, &path, None).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(Key::default());
        }
        Ok(Key::read(&answer.json()?[0]))
    }

    pub(super) async fn read_queue(&self, lock: &str) -> Result<Vec<QueueEntry>, Failure> {
        let key = self.read(lock).await?;
        let mut queue = Vec::new();
        if !key.session.is_empty() {
            queue.push(QueueEntry {
                session: key.session,
                owner: key.owner,
                claim: Claim::EXCLUSIVE,
                token: key.lock_index,
                since: wall_clock().saturating_sub(key.since),
            });
        } else if key.is_shared {
            queue.extend(self.shares(lock, None).await?.into_live().map(Share::into_queue_entry));
        }
        queue.sort_by_key(|entry| entry.token);
        // Only the waiters of this keeper are known.
        for _ in 0..self.queues.waiting(lock) {
            queue.push(QueueEntry {
                session: String::new(),
                owner: self.owner.clone(),
                claim: Claim::EXCLUSIVE,
                token: 0,
                since: Duration::ZERO,
            });
        }
        Ok(queue)
    }

    pub(super) async fn read_names(&self, prefix: &str) -> Result<Vec<String>, Failure> {
        let path = format!("/v1/kv/{}?keys&consistent", encode_path(&self.key(prefix)));
        let answer = self.client.call(Method::GET, &path, None).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(Vec::new());
        }
        let root = self.key("");
        let keys = answer.json()?;
        Ok(keys
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|key| unescape(key.as_str()?.strip_prefix(&root)?))
            .collect())
    }

    pub(super) async fn find_weak_spots(&self) -> Result<Vec<Finding>, Failure> {
        let answer = self.client.call(Method::GET, "/v1/status/peers", None).await?;
        let peers = answer.json()?;
        let servers = peers.as_array().map_or(0, Vec::len);
        let mut findings = Vec::new();
        if servers < 3 {
            findings.push(Finding::new(
                "single-node",
                format!(
                    "the cluster has {servers} server(s): the failure of one makes all locks unavailable"
                ),
                "run three or five Consul servers",
            ));
        }
        if self.deletes {
            findings.push(Finding::new(
                "token-starts-again",
                "with behavior=delete the LockIndex starts at 1 again each time the lock is released",
                "use behavior=release if a resource checks tokens",
            ));
        }
        findings.extend(answer.date.and_then(|theirs| clock_off(&self.client.address(), theirs)));
        Ok(findings)
    }

    /// Runs a transaction and returns the key of its last step; the inner `Err` is the reason why Consul rejected it.
    pub(super) async fn transaction(&self, steps: &[Json]) -> Result<Result<Key, String>, Failure> {
        let steps: Vec<Json> = steps.iter().map(|step| json!({ "KV": step })).collect();
        let answer = self.client.call(Method::PUT, "/v1/txn", Some(&Json::Array(steps))).await?;
        let body = answer.json()?;
        if answer.status == StatusCode::CONFLICT {
            let why = body["Errors"][0]["What"].as_str().unwrap_or_default().to_owned();
            if why.contains("invalid session") {
                return Err(Failure::Gone);
            }
            return Ok(Err(why));
        }
        let last = body["Results"].as_array().and_then(|results| results.last()).map(|last| &last["KV"]);
        Ok(Ok(last.map(Key::read).unwrap_or_default()))
    }
}
