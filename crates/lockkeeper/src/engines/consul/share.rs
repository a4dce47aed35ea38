//! Shared and counted locks: a key for each holder, and the lock's own key as the turnstile that all of them pass.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Method, StatusCode};
use serde_json::{Value as Json, json};

use super::Consul;
use super::client::in_path;
use super::lock::Tried;
use super::session::ConsulSession;
use super::token::{Key, SHARED};
use crate::engines::runtime::sessions::Ticket;
use crate::engines::runtime::{Claim, Failure, QueueEntry, escape, wall_clock};
use crate::error::Error;

/// Consul takes 64 steps in one transaction: so many keys are removed in one that has others to do as well.
const SWEPT_AT_ONCE: usize = 48;

/// The key of one holder. When its session ends, Consul takes the session off it, or the key away.
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

/// All holders of a lock as they were at one index.
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

    pub(super) fn queued(self) -> QueueEntry {
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

    /// Steps that remove what the dead have left behind. A key that has changed since stays, and the transaction fails.
    pub(super) fn sweep(&self) -> impl Iterator<Item = Json> {
        let dead = self.all.iter().filter(|share| share.session.is_empty());
        dead.take(SWEPT_AT_ONCE).map(Share::removed)
    }

    fn of(&self, session: &ConsulSession, ticket: &Ticket) -> Option<&Share> {
        self.live().find(|share| share.session == session.id && share.id == ticket.id)
    }
}

impl Share {
    fn removed(&self) -> Json {
        json!({"Verb": "delete-cas", "Key": self.key, "Index": self.modify_index})
    }
}

impl Consul {
    fn shares_of(&self, lock: &str) -> String {
        format!("{}/shares/{}/", self.root, escape(lock))
    }

    fn share_key(&self, ticket: &Ticket) -> String {
        format!("{}{}", self.shares_of(&ticket.lock), ticket.id)
    }

    /// The holders of a lock. With an index: as soon as they are others than they were then, or after a while.
    pub(super) async fn shares(&self, lock: &str, after: Option<u64>) -> Result<Shares, Failure> {
        let path = format!("/v1/kv/{}?recurse&consistent", in_path(&self.shares_of(lock)));
        let answer = match after {
            None => self.client.call(Method::GET, &path, None).await?,
            Some(index) => self.blocking(&path, index).await?,
        };
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(Shares { all: Vec::new(), index: answer.index });
        }
        let listed = answer.json()?;
        let all = listed.as_array().into_iter().flatten().filter_map(Share::read).collect();
        Ok(Shares { all, index: answer.index })
    }

    /// Whether there is room beside those who share the lock.
    pub(super) fn fits(&self, ticket: &Ticket, shares: &Shares) -> Result<bool, Failure> {
        ticket.claim.is_admitted_behind(shares.live().map(|share| share.claim))
    }

    /// One try. Every grant changes the lock's own key, on the condition that it is as it was when we read it: whatever
    /// was read after it cannot have grown since.
    pub(super) async fn try_share(&self, session: &ConsulSession, ticket: &Ticket) -> Result<Tried, Failure> {
        if session.has_lock_delay {
            return Err(Failure::Refused(Error::unsupported(
                "the engine consul has a lock-delay for exclusive locks alone",
            )));
        }
        let was_in_doubt = ticket.in_doubt.load(Ordering::Relaxed);
        loop {
            let key = self.read(&ticket.lock).await?;
            if !key.session.is_empty() {
                ticket.claim.is_admitted_behind([Claim::EXCLUSIVE])?;
                return Ok(Tried::Held);
            }
            let shares = self.shares(&ticket.lock, None).await?;
            if let Some(own) = shares.of(session, ticket) {
                return Ok(Tried::Locked(own.token));
            }
            if !self.fits(ticket, &shares)? {
                return Ok(Tried::Shared { key: key.modify_index, shares: shares.index });
            }
            let token = key.lock_index + 1;
            let steps = self.share_steps(session, ticket, &key, token).into_iter().chain(shares.sweep());
            let steps: Vec<Json> = steps.collect();
            // From here to the answer, nobody knows: a caller who goes away must settle it.
            ticket.in_doubt.store(true, Ordering::Relaxed);
            let answer = self.transaction(&steps).await?;
            ticket.in_doubt.store(was_in_doubt, Ordering::Relaxed);
            match answer {
                Ok(_) => {
                    let _ = ticket.place.set(token);
                    return Ok(Tried::Locked(token));
                }
                Err(why) if why.contains("lock delay") => return Ok(Tried::Delayed),
                Err(_) => {}
            }
        }
    }

    /// Through the turnstile, which counts, and in.
    fn share_steps(&self, session: &ConsulSession, ticket: &Ticket, key: &Key, token: u64) -> [Json; 4] {
        let own = self.key(&ticket.lock);
        let (since, signed) = (wall_clock().as_millis(), ticket.signed(&self.owner));
        let value = format!("{since} {} {token} {} {signed}", ticket.id, ticket.claim);
        [
            self.unchanged(&ticket.lock, key.modify_index),
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

    /// Gives a share back, and makes sure that the ticket never gets one.
    pub(super) async fn unshare(&self, session: &ConsulSession, ticket: &Ticket) -> Result<bool, Failure> {
        let in_doubt = ticket.in_doubt.load(Ordering::Relaxed);
        if ticket.place.get().is_none() && !in_doubt {
            return Ok(false);
        }
        let share = self.share_key(ticket);
        let give = [
            json!({"Verb": "check-session", "Key": share, "Session": session.id}),
            json!({"Verb": "delete", "Key": share}),
        ];
        loop {
            let key = if in_doubt { Some(self.read(&ticket.lock).await?) } else { None };
            if self.transaction(&give).await?.is_ok() {
                return Ok(true);
            }
            match key {
                // Our share may still be on its way, with the condition that the lock's key is as it is now: change it.
                Some(key) if key.session.is_empty() => {
                    if self.touch(session, &ticket.lock, &key).await? {
                        return Ok(false);
                    }
                }
                _ => return Ok(false),
            }
        }
    }

    /// Resolves when something has changed that may let somebody in.
    pub(super) async fn room_may_be_made(&self, lock: &str, key: u64, shares: u64) -> Result<(), Failure> {
        tokio::select! {
            // A grant changes the lock's key; a release and the end of a session change the shares.
            changed = self.changed(lock, key, |now| now.modify_index != key) => changed.map(|_| ()),
            changed = self.shares(lock, Some(shares)) => changed.map(|_| ()),
        }
    }

    /// Resolves when the ticket has no share any more.
    pub(super) async fn wait_for_share_lost(
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
            // An index that goes back is of a cluster that was restored: begin anew.
            after = Some(shares.index).filter(|index| after.is_none_or(|before| before <= *index));
        }
    }

    /// Takes their shares from those who have one, as many as fit in a transaction, and says how many; `None` if something
    /// has changed meanwhile. `own` passes the turnstile, so that later tokens are above theirs.
    pub(super) async fn unshare_by_force(
        &self,
        own: &ConsulSession,
        lock: &str,
        key: &Key,
    ) -> Result<Option<u32>, Failure> {
        let shares = self.shares(lock, None).await?;
        let holders: Vec<Json> = shares.live().take(SWEPT_AT_ONCE).map(Share::removed).collect();
        if holders.is_empty() {
            return Ok(Some(0));
        }
        let (name, count) = (self.key(lock), holders.len() as u32);
        let through = [
            self.unchanged(lock, key.modify_index),
            json!({"Verb": "lock", "Key": name, "Value": "", "Session": own.id}),
            json!({"Verb": "unlock", "Key": name, "Value": STANDARD.encode(SHARED), "Session": own.id}),
        ];
        let steps: Vec<Json> = through.into_iter().chain(holders).collect();
        Ok(self.transaction(&steps).await?.ok().map(|_| count))
    }
}
