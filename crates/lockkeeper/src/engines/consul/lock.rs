//! Acquire and release: transactions with the state that was seen as their condition.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as Json, json};

use super::Consul;
use super::session::ConsulSession;
use super::token::{Key, SHARED};
use crate::engines::runtime::sessions::{Entered, Ticket, Try};
use crate::engines::runtime::{Claim, Failure};
use crate::view::ForcedRelease;

/// How many locks' last state is remembered.
const SEEN_MAX: usize = 10_000;

/// What became of an attempt to lock the key.
pub(super) enum Tried {
    /// It is ours, with this token.
    Locked(u64),
    /// Somebody has it.
    Held,
    /// Others share it, and there is no room: what is seen is the lock's key and the shares at these indices.
    Shared { key: u64, shares: u64 },
    /// Its last holder was lost, and it is kept closed.
    Delayed,
}

impl Consul {
    pub(super) async fn enter_line(
        &self,
        session: &ConsulSession,
        ticket: &Ticket,
        mode: Try,
    ) -> Result<Entered, Failure> {
        // Those who wait here came first.
        if mode == Try::Queue && self.lines.waiting(&ticket.lock) > 0 {
            return Ok(Entered::Waits);
        }
        Ok(match (self.try_lock(session, ticket).await?, mode) {
            (Tried::Locked(token), _) => Entered::Holds(token),
            (_, Try::Queue) => Entered::Waits,
            (_, Try::Once) => Entered::Busy,
        })
    }

    /// The key is still as it was when we saw it.
    pub(super) fn unchanged(&self, lock: &str, index: u64) -> Json {
        match index {
            0 => json!({"Verb": "check-not-exists", "Key": self.key(lock)}),
            index => json!({"Verb": "check-index", "Key": self.key(lock), "Index": index}),
        }
    }

    pub(super) async fn try_lock(&self, session: &ConsulSession, ticket: &Ticket) -> Result<Tried, Failure> {
        if ticket.claim != Claim::EXCLUSIVE {
            return self.try_share(session, ticket).await;
        }
        let was_in_doubt = ticket.in_doubt.load(Ordering::Relaxed);
        // A lock that we released ourselves is mostly as we left it: that saves a question.
        let mut guess = if was_in_doubt { None } else { self.last_seen_free(&ticket.lock) };
        loop {
            let mut swept = Vec::new();
            let index = match guess.take() {
                Some(index) => index,
                None => {
                    let key = self.read(&ticket.lock).await?;
                    if key.session == session.id && key.id == ticket.id {
                        return Ok(self.locked(ticket, &key));
                    }
                    if !key.session.is_empty() {
                        return Ok(Tried::Held);
                    }
                    if key.is_shared {
                        let shares = self.shares(&ticket.lock, None).await?;
                        if !self.fits(ticket, &shares)? {
                            return Ok(Tried::Shared { key: key.modify_index, shares: shares.index });
                        }
                        swept.extend(shares.sweep());
                    }
                    key.modify_index
                }
            };
            let lock = json!({
                "Verb": "lock",
                "Key": self.key(&ticket.lock),
                "Value": self.value(ticket),
                "Session": session.id,
            });
            // The last answer is that of the lock.
            let mut steps = vec![self.unchanged(&ticket.lock, index)];
            steps.append(&mut swept);
            steps.push(lock);
            // From here to the answer, nobody knows: a caller who goes away must settle it.
            ticket.in_doubt.store(true, Ordering::Relaxed);
            let answer = self.transaction(&steps).await?;
            ticket.in_doubt.store(was_in_doubt, Ordering::Relaxed);
            match answer {
                Ok(key) => return Ok(self.locked(ticket, &key)),
                Err(why) if why.contains("lock delay") => return Ok(Tried::Delayed),
                Err(_) => {}
            }
        }
    }

    fn locked(&self, ticket: &Ticket, key: &Key) -> Tried {
        let _ = ticket.place.set(key.modify_index);
        Tried::Locked(key.lock_index)
    }

    fn last_seen_free(&self, lock: &str) -> Option<u64> {
        self.seen_free.lock().unwrap_or_else(PoisonError::into_inner).remove(lock)
    }

    fn saw_free(&self, ticket: &Ticket, index: u64) {
        let mut seen = self.seen_free.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        seen.insert(ticket.lock.clone(), index);
    }

    /// Frees the key if this ticket holds it, and makes sure that it never will.
    pub(super) async fn unlock(&self, session: &ConsulSession, ticket: &Ticket) -> Result<bool, Failure> {
        if ticket.claim != Claim::EXCLUSIVE {
            return self.unshare(session, ticket).await;
        }
        let in_doubt = ticket.in_doubt.load(Ordering::Relaxed);
        let mut index = match ticket.place.get() {
            Some(&index) if !in_doubt => Some(index),
            None if !in_doubt => return Ok(false),
            _ => None,
        };
        loop {
            let index = match index.take() {
                Some(index) => index,
                None => {
                    let key = self.read(&ticket.lock).await?;
                    if key.session == session.id && key.id == ticket.id {
                        key.modify_index
                    } else if key.session.is_empty() && in_doubt {
                        // Our lock may still be on its way, with the condition that the key is as it is now: change it.
                        match self.touch(session, &ticket.lock, &key).await? {
                            true => return Ok(false),
                            false => continue,
                        }
                    } else {
                        return Ok(false);
                    }
                }
            };
            let key = self.key(&ticket.lock);
            let free = if self.deletes {
                json!({"Verb": "delete", "Key": key})
            } else {
                json!({"Verb": "unlock", "Key": key, "Value": "", "Session": session.id})
            };
            if let Ok(key) = self.transaction(&[self.unchanged(&ticket.lock, index), free]).await? {
                self.saw_free(ticket, if self.deletes { 0 } else { key.modify_index });
                return Ok(true);
            }
        }
    }

    /// Changes the index of a free key and nothing that it says; false if it is not as it was read. Locked and unlocked,
    /// because a `set` would take its LockIndex back to 0, and with it the tokens.
    pub(super) async fn touch(
        &self,
        session: &ConsulSession,
        lock: &str,
        key: &Key,
    ) -> Result<bool, Failure> {
        let (name, says) =
            (self.key(lock), if key.is_shared { STANDARD.encode(SHARED) } else { String::new() });
        let steps = [
            self.unchanged(lock, key.modify_index),
            json!({"Verb": "lock", "Key": name, "Value": "", "Session": session.id}),
            json!({"Verb": "unlock", "Key": name, "Value": says, "Session": session.id}),
        ];
        match self.transaction(&steps).await? {
            Ok(_) => Ok(true),
            // It can be locked neither by this nor by what may be on its way: later.
            Err(why) if why.contains("lock delay") => Err(Failure::unreachable("the lock is kept closed")),
            Err(_) => Ok(false),
        }
    }

    /// Takes the lock from whoever has it, and raises its LockIndex above theirs.
    pub(super) async fn unlock_by_force(&self, lock: &str) -> Result<ForcedRelease, Failure> {
        let own = self.create_session(Duration::from_secs(10), Duration::ZERO).await?.session;
        let mut holders = 0;
        let forced = loop {
            let found = self.read(lock).await?;
            if found.session.is_empty() {
                match self.unshare_by_force(&own, lock, &found).await? {
                    Some(0) => break ForcedRelease { holders, last_token: found.lock_index },
                    Some(count) => holders += count,
                    None => {}
                }
                continue;
            }
            let key = self.key(lock);
            let steps = [
                self.unchanged(lock, found.modify_index),
                json!({"Verb": "unlock", "Key": key, "Value": "", "Session": found.session}),
                json!({"Verb": "lock", "Key": key, "Value": "", "Session": own.id}),
                json!({"Verb": "unlock", "Key": key, "Value": "", "Session": own.id}),
            ];
            if let Ok(key) = self.transaction(&steps).await? {
                break ForcedRelease { holders: holders + 1, last_token: key.lock_index };
            }
        };
        let _ = self.destroy_session(&own).await;
        Ok(forced)
    }
}
