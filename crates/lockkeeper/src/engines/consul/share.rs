//! Shared and counted locks: a key for each holder, and the lock's key, which every grant changes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Method, StatusCode};
use serde_json::{Value as Json, json};

use super::Consul;
use super::client::encode_path;
use super::lock::Attempt;
use super::session::ConsulSession;
use super::token::{Key, SHARED};
use crate::engines::runtime::sessions::Ticket;
use crate::engines::runtime::{Claim, Failure, QueueEntry, escape, wall_clock};
use crate::error::Error;

/// The limit of shares that one transaction removes. Consul allows 64 steps, and some are needed for the grant.
const REMOVALS_MAX: usize = 48;

/// The key of one holder. When its session ends, Consul detaches the session, or deletes the key (`behavior=delete`).
#[derive(Debug, Clone)]
pub(super) struct Share {
    key: String,
    modify_index: u64,
    session: String,
    id: String,
    token: u64,
    claim: Claim,
    since: Duration,
    owner: String,
}

/// All shares of a lock, as read at one index.
pub(super) struct Shares {
    all: Vec<Share>,
    pub(super) index: u64,
}

impl Share {
    fn read(json: &Json) -> Option<Share> {
        let value = STANDARD.decode(json["Value"].as_str()?).ok()?;
        let value = String::from_utf8_lossy(&value).into_owned();
        let mut parts = value.splitn(5, ' ');
        Some(Share {
            key: json["Key"].as_str()?.to_owned(),
            modify_index: json["ModifyIndex"].as_u64()?,
            session: json["Session"].as_str().unwrap_or_default().to_owned(),
            since: Duration::from_millis(parts.next()?.parse().ok()?),
            id: parts.next()?.to_owned(),
            token: parts.next()?.parse().ok()?,
            claim: parts.next()?.parse().ok()?,
            owner: parts.next().unwrap_or_default().to_owned(),
        })
    }

    pub(super) fn into_queue_entry(self) -> QueueEntry {
        QueueEntry {
            session: self.session,
            owner: self.owner,
            claim: self.claim,
            token: self.token,
            since: wall_clock().saturating_sub(self.since),
        }
    }
}

impl Shares {
    pub(super) fn live(&self) -> impl Iterator<Item = &Share> {
        self.all.iter().filter(|share| !share.session.is_empty())
    }

    pub(super) fn into_live(self) -> impl Iterator<Item = Share> {
        self.all.into_iter().filter(|share| !share.session.is_empty())
    }

    /// Transaction steps that delete shares whose session has ended. If one has changed since, the transaction fails.
    pub(super) fn remove_expired(&self) -> impl Iterator<Item = Json> {
        let expired = self.all.iter().filter(|share| share.session.is_empty());
        expired.take(REMOVALS_MAX).map(Share::removal)
    }

    fn of(&self, session: &ConsulSession, ticket: &Ticket) -> Option<&Share> {
        self.live().find(|share| share.session == session.id && share.id == ticket.id)
    }
}

impl Share {
    /// The transaction step that deletes this share.
    fn removal(&self) -> Json {
        json!({"Verb": "delete-cas", "Key": self.key, "Index": self.modify_index})
    }
}

impl Consul {
    fn shares_prefix(&self, lock: &str) -> String {
        format!("{}/shares/{}/", self.root, escape(lock))
    }

    fn share_key(&self, ticket: &Ticket) -> String {
        format!("{}{}", self.shares_prefix(&ticket.lock), ticket.id)
    }

    /// Reads the shares of a lock. With an index: waits until they have changed since, or until the query times out.
    pub(super) async fn shares(&self, lock: &str, after: Option<u64>) -> Result<Shares, Failure> {
        let path = format!("/v1/kv/{}?recurse&consistent", encode_path(&self.shares_prefix(lock)));
        let answer = match after {
            None => self.client.call(Method::GET, &path, None).await?,
            Some(index) => self.blocking_query(&path, index).await?,
        };
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(Shares { all: Vec::new(), index: answer.index });
        }
        let listed = answer.json()?;
        let all = listed.as_array().into_iter().flatten().filter_map(Share::read).collect();
        Ok(Shares { all, index: answer.index })
    }

    /// Whether the lock has room for the ticket beside these shares.
    pub(super) fn fits(&self, ticket: &Ticket, shares: &Shares) -> Result<bool, Failure> {
        ticket.claim.is_admitted_behind(shares.live().map(|share| share.claim))
    }

    /// Attempts to take a share. Each grant changes the lock's key, on the condition that the key has not changed since it was
    /// read. The shares are read after the key, so no share can have been added unnoticed.
    pub(super) async fn try_share(
        &self,
        session: &ConsulSession,
        ticket: &Ticket,
    ) -> Result<Attempt, Failure> {
        if session.has_lock_delay {
            return Err(Failure::Refused(Error::unsupported(
                "the engine consul supports a lock-delay for exclusive locks only: leave out lock_delay",
            )));
        }
        let was_in_doubt = ticket.in_doubt.load(Ordering::Relaxed);
        loop {
            let key = self.read(&ticket.lock).await?;
            if !key.session.is_empty() {
                ticket.claim.is_admitted_behind([Claim::EXCLUSIVE])?;
                return Ok(Attempt::Held);
            }
            let shares = self.shares(&ticket.lock, None).await?;
            if let Some(own) = shares.of(session, ticket) {
                return Ok(Attempt::Locked(own.token));
            }
            if !self.fits(ticket, &shares)? {
                return Ok(Attempt::Shared { key: key.modify_index, shares: shares.index });
            }
            let token = key.lock_index + 1;
            let steps =
                self.share_steps(session, ticket, &key, token).into_iter().chain(shares.remove_expired());
            let steps: Vec<Json> = steps.collect();
            // In doubt until the answer arrives: if the caller is dropped meanwhile, `unshare` has to settle it.
            ticket.in_doubt.store(true, Ordering::Relaxed);
            let answer = self.transaction(&steps).await?;
            ticket.in_doubt.store(was_in_doubt, Ordering::Relaxed);
            match answer {
                Ok(_) => {
                    let _ = ticket.place.set(token);
                    return Ok(Attempt::Locked(token));
                }
                Err(why) if why.contains("lock delay") => return Ok(Attempt::Delayed),
                Err(_) => {}
            }
        }
    }

    /// The transaction steps of a shared grant: lock and unlock the lock's key, which increments its LockIndex, and create the
    /// share.
    fn share_steps(&self, session: &ConsulSession, ticket: &Ticket, key: &Key, token: u64) -> [Json; 4] {
        let own = self.key(&ticket.lock);
        let (since, owner) = (wall_clock().as_millis(), ticket.owner_with_value(&self.owner));
        let value = format!("{since} {} {token} {} {owner}", ticket.id, ticket.claim);
        [
            self.check_unchanged(&ticket.lock, key.modify_index),
            json!({"Verb": "lock", "Key": own, "Value": "", "Session": session.id}),
            json!({"Verb": "unlock", "Key": own, "Value": STANDARD.encode(SHARED), "Session": session.id}),
            json!({
                "Verb": "lock",
                "Key": self.share_key(ticket),
                "Value": STANDARD.encode(value),
                "Session": session.id,
            }),
        ]
    }

    /// Releases a share. Afterwards the ticket can never get one: a request that is still in flight fails.
    pub(super) async fn unshare(&self, session: &ConsulSession, ticket: &Ticket) -> Result<bool, Failure> {
        let in_doubt = ticket.in_doubt.load(Ordering::Relaxed);
        if ticket.place.get().is_none() && !in_doubt {
            return Ok(false);
        }
        let share = self.share_key(ticket);
        let release = [
            json!({"Verb": "check-session", "Key": share, "Session": session.id}),
            json!({"Verb": "delete", "Key": share}),
        ];
        loop {
            let key = if in_doubt { Some(self.read(&ticket.lock).await?) } else { None };
            if self.transaction(&release).await?.is_ok() {
                return Ok(true);
            }
            match key {
                // A request may still be in flight, on the condition that the lock's key has not changed: change it.
                Some(key) if key.session.is_empty() => {
                    if self.bump_index(session, &ticket.lock, &key).await? {
                        return Ok(false);
                    }
                }
                _ => return Ok(false),
            }
        }
    }

    /// Resolves when the lock's key or its shares have changed since these indices: there may be room.
    pub(super) async fn shares_changed(&self, lock: &str, key: u64, shares: u64) -> Result<(), Failure> {
        tokio::select! {
            // A grant changes the lock's key; a release or the end of a session changes the shares.
            changed = self.changed(lock, key, |now| now.modify_index != key) => changed.map(|_| ()),
            changed = self.shares(lock, Some(shares)) => changed.map(|_| ()),
        }
    }

    /// Resolves when the ticket no longer has a share.
    pub(super) async fn wait_for_share_loss(
        &self,
        session: &ConsulSession,
        ticket: &Ticket,
    ) -> Result<(), Failure> {
        let mut after = None;
        loop {
            let shares = self.shares(&ticket.lock, after).await?;
            if shares.of(session, ticket).is_none() {
                return Ok(());
            }
            // A smaller index means that the cluster was restored from a snapshot: start without an index.
            after = Some(shares.index).filter(|index| after.is_none_or(|before| before <= *index));
        }
    }

    /// Removes shares, as many as fit into one transaction, and returns their number; `None` if the lock has changed meanwhile.
    /// Locks and unlocks the lock's key with the session `own`, so that later tokens are greater than the removed ones.
    pub(super) async fn force_unshare(
        &self,
        own: &ConsulSession,
        lock: &str,
        key: &Key,
    ) -> Result<Option<u32>, Failure> {
        let shares = self.shares(lock, None).await?;
        let removals: Vec<Json> = shares.live().take(REMOVALS_MAX).map(Share::removal).collect();
        if removals.is_empty() {
            return Ok(Some(0));
        }
        let (name, count) = (self.key(lock), removals.len() as u32);
        let increment = [
            self.check_unchanged(lock, key.modify_index),
            json!({"Verb": "lock", "Key": name, "Value": "", "Session": own.id}),
            json!({"Verb": "unlock", "Key": name, "Value": STANDARD.encode(SHARED), "Session": own.id}),
        ];
        let steps: Vec<Json> = increment.into_iter().chain(removals).collect();
        Ok(self.transaction(&steps).await?.ok().map(|_| count))
    }
}
