//! Keys and their values. The token is the create-revision of an entry's key.

use std::time::Duration;

use super::Etcd;
use super::session::{Lease, lease_name};
use super::wire::{Empty, KeyValue, MemberListResponse, RangeRequest, SortOrder, SortTarget};
use crate::capabilities::Finding;
use crate::engines::runtime::sessions::Ticket;
use crate::engines::runtime::{Claim, Failure, QueueEntry, escape, unescape, wall_clock};
use crate::engines::weak_spots::{clock_off, http_clock};

/// The limit of keys that a list of locks reads.
const LISTED_KEYS_MAX: i64 = 100_000;

/// An entry of a queue, as read.
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    pub(super) claim: Claim,
}

impl Etcd {
    pub(super) fn sessions_prefix(&self) -> Vec<u8> {
        format!("{}/sessions/", self.root).into_bytes()
    }

    pub(super) fn session_key(&self, lease: i64) -> Vec<u8> {
        format!("{}/sessions/{}", self.root, lease_name(lease)).into_bytes()
    }

    /// The key range of the entries of a lock.
    pub(super) fn queue_range(&self, lock: &str) -> (Vec<u8>, Vec<u8>) {
        prefix_range(format!("{}/locks/{}/", self.root, escape(lock)))
    }

    pub(super) fn entry_key(&self, lease: &Lease, ticket: &Ticket) -> Vec<u8> {
        format!(
            "{}/locks/{}/{}-{}-{}",
            self.root,
            escape(&ticket.lock),
            ticket.claim,
            lease.name(),
            ticket.id
        )
        .into_bytes()
    }

    /// The value of an entry: since when, and the owner. It is informational only.
    pub(super) fn entry_value(&self, ticket: &Ticket) -> Vec<u8> {
        format!("{} {}", wall_clock().as_millis(), ticket.owner_with_value(&self.owner)).into_bytes()
    }

    /// The claim of an entry; `None` for a key that is not an entry.
    pub(super) fn claim_of(&self, key: &[u8]) -> Option<Claim> {
        let entry = std::str::from_utf8(key).ok()?.rsplit('/').next()?;
        entry.split('-').next()?.parse().ok()
    }

    /// The first key with a prefix.
    pub(super) async fn first_key(&self, prefix: &[u8]) -> Result<Option<KeyValue>, Failure> {
        let (key, range_end) = prefix_range(String::from_utf8_lossy(prefix).into_owned());
        let range = RangeRequest { key, range_end, limit: 1, keys_only: true, ..RangeRequest::default() };
        Ok(self.client.range(range).await?.kvs.into_iter().next())
    }

    async fn read_entries(&self, lock: &str) -> Result<Vec<KeyValue>, Failure> {
        let (key, range_end) = self.queue_range(lock);
        let range = RangeRequest {
            key,
            range_end,
            sort_order: SortOrder::Ascend as i32,
            sort_target: SortTarget::Create as i32,
            ..RangeRequest::default()
        };
        Ok(self.client.range(range).await?.kvs)
    }

    pub(super) async fn entries(&self, lock: &str) -> Result<Vec<Entry>, Failure> {
        let kvs = self.read_entries(lock).await?;
        Ok(kvs
            .into_iter()
            .filter_map(|kv| Some(Entry { claim: self.claim_of(&kv.key)?, key: kv.key }))
            .collect())
    }

    pub(super) async fn read_queue(&self, lock: &str) -> Result<Vec<QueueEntry>, Failure> {
        let kvs = self.read_entries(lock).await?;
        Ok(kvs
            .into_iter()
            .filter_map(|kv| {
                let value = String::from_utf8_lossy(&kv.value);
                let (since, owner) = value.split_once(' ').unwrap_or(("", &value));
                let since = since.parse().map_or(wall_clock(), Duration::from_millis);
                Some(QueueEntry {
                    session: lease_name(kv.lease),
                    owner: owner.to_owned(),
                    claim: self.claim_of(&kv.key)?,
                    token: kv.create_revision.cast_unsigned(),
                    since: wall_clock().saturating_sub(since),
                })
            })
            .collect())
    }

    pub(super) async fn find_weak_spots(&self) -> Result<Vec<Finding>, Failure> {
        let members: MemberListResponse =
            self.client.call("/etcdserverpb.Cluster/MemberList", Empty {}).await?;
        let mut findings = Vec::new();
        let voters = members.members.iter().filter(|member| !member.is_learner).count();
        if voters < 3 {
            findings.push(Finding::new(
                "single-node",
                format!("the cluster has {voters} voting member(s): the failure of one makes all locks unavailable"),
                "run three or five etcd members",
            ));
        }
        // gRPC does not report the time, but the same port also serves HTTP, which does.
        let host = self.client.host();
        let theirs = http_clock(host, "/version").await;
        findings.extend(theirs.and_then(|theirs| clock_off(&format!("etcd at {host}"), theirs)));
        Ok(findings)
    }

    pub(super) async fn read_names(&self, prefix: &str) -> Result<Vec<String>, Failure> {
        let (key, range_end) = prefix_range(format!("{}/locks/{}", self.root, escape(prefix)));
        let range = RangeRequest {
            key,
            range_end,
            limit: LISTED_KEYS_MAX,
            keys_only: true,
            ..RangeRequest::default()
        };
        let mut names: Vec<String> = self
            .client
            .range(range)
            .await?
            .kvs
            .iter()
            .filter_map(|kv| unescape(std::str::from_utf8(&kv.key).ok()?.rsplit('/').nth(1)?))
            .collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
}

/// The range of all keys with a prefix.
fn prefix_range(prefix: String) -> (Vec<u8>, Vec<u8>) {
    let prefix = prefix.into_bytes();
    let mut end = prefix.clone();
    // The prefix ends with ASCII, so incrementing its last byte cannot overflow.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (prefix, end)
}
