//! Acquire and release: transactions on the condition that the lock's key has not changed since it was read.

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

/// The limit of locks whose last free state is cached.
const FREE_CACHE_MAX: usize = 10_000;

/// The result of an attempt to take a lock.
pub(super) enum Attempt {
    /// The ticket holds the lock, with this token.
    Locked(u64),
    /// The lock is held exclusively.
    Held,
    /// The lock is shared and has no room. The lock's key and its shares were read at these indices.
    Shared { key: u64, shares: u64 },
    /// The lock is in its lock-delay, after the session of its last holder ended.
    Delayed,
}

impl Consul {
    pub(super) async fn enter_queue(
        &self,
        session: &ConsulSession,
        ticket: &Ticket,
        mode: Try,
    ) -> Result<Entered, Failure> {
        // Tasks of this keeper that already wait come first.
        if mode == Try::Queue && self.queues.waiting(&ticket.lock) > 0 {
            return Ok(Entered::Waits);
        }
        Ok(match (self.try_lock(session, ticket).await?, mode) {
            (Attempt::Locked(token), _) => Entered::Holds(token),
            (_, Try::Queue) => Entered::Waits,
            (_, Try::Once) => Entered::Busy,
        })
    }

    /// The transaction step that fails if the lock's key has changed since this index.
    pub(super) fn check_unchanged(&self, lock: &str, index: u64) -> Json {
        match index {
            0 => json!({"Verb": "check-not-exists", "Key": self.key(lock)}),
            index => json!({"Verb": "check-index", "Key": self.key(lock), "Index": index}),
        }
    }

    pub(super) async fn try_lock(
        &self,
        session: &ConsulSession,
        ticket: &Ticket,
    ) -> Result<Attempt, Failure> {
        if ticket.claim != Claim::EXCLUSIVE {
            return self.try_share(session, ticket).await;
        }
        let was_in_doubt = ticket.in_doubt.load(Ordering::Relaxed);
        // A lock that this keeper released is usually unchanged: the cached index saves a read.
        let mut cached = if was_in_doubt { None } else { self.take_cached_free(&ticket.lock) };
        loop {
            let mut removals = Vec::new();
            let index = match cached.take() {
                Some(index) => index,
                None => {
                    let key = self.read(&ticket.lock).await?;
                    if key.session == session.id && key.id == ticket.id {
                        return Ok(self.locked(ticket, &key));
                    }
                    if !key.session.is_empty() {
                        return Ok(Attempt::Held);
                    }
                    if key.is_shared {
                        let shares = self.shares(&ticket.lock, None).await?;
                        if !self.fits(ticket, &shares)? {
                            return Ok(Attempt::Shared { key: key.modify_index, shares: shares.index });
                        }
                        removals.extend(shares.remove_expired());
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
            // The lock step is last, because `transaction` returns the result of the last step.
            let mut steps = vec![self.check_unchanged(&ticket.lock, index)];
            steps.append(&mut removals);
            steps.push(lock);
            // In doubt until the answer arrives: if the caller is dropped meanwhile, `unlock` has to settle it.
            ticket.in_doubt.store(true, Ordering::Relaxed);
            let answer = self.transaction(&steps).await?;
            ticket.in_doubt.store(was_in_doubt, Ordering::Relaxed);
            match answer {
                Ok(key) => return Ok(self.locked(ticket, &key)),
                Err(why) if why.contains("lock delay") => return Ok(Attempt::Delayed),
                Err(_) => {}
            }
        }
    }

    fn locked(&self, ticket: &Ticket, key: &Key) -> Attempt {
        let _ = ticket.place.set(key.modify_index);
        Attempt::Locked(key.lock_index)
    }

    fn take_cached_free(&self, lock: &str) -> Option<u64> {
        self.free_cache.lock().unwrap_or_else(PoisonError::into_inner).remove(lock)
    }

    fn cache_free(&self, ticket: &Ticket, index: u64) {
        let mut cache = self.free_cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= FREE_CACHE_MAX {
            cache.clear();
        }
        cache.insert(ticket.lock.clone(), index);
    }

    /// Releases the key if this ticket holds it. Afterwards the ticket can never hold it: a lock request that is still in
    /// flight fails.
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
                        // A lock request may still be in flight, on the condition that the key has not changed: change it.
                        match self.bump_index(session, &ticket.lock, &key).await? {
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
            if let Ok(key) = self.transaction(&[self.check_unchanged(&ticket.lock, index), free]).await? {
                self.cache_free(ticket, if self.deletes { 0 } else { key.modify_index });
                return Ok(true);
            }
        }
    }

    /// Changes the ModifyIndex of a free key, but not its value; false if the key has changed since it was read. Locks and
    /// unlocks the key, because `set` would reset its LockIndex to 0, and with it the tokens.
    pub(super) async fn bump_index(
        &self,
        session: &ConsulSession,
        lock: &str,
        key: &Key,
    ) -> Result<bool, Failure> {
        let (name, value) =
            (self.key(lock), if key.is_shared { STANDARD.encode(SHARED) } else { String::new() });
        let steps = [
            self.check_unchanged(lock, key.modify_index),
            json!({"Verb": "lock", "Key": name, "Value": "", "Session": session.id}),
            json!({"Verb": "unlock", "Key": name, "Value": value, "Session": session.id}),
        ];
        match self.transaction(&steps).await? {
            Ok(_) => Ok(true),
            // During the lock-delay, neither this nor the request in flight can lock the key: a retry settles it.
            Err(why) if why.contains("lock delay") => {
                Err(Failure::unreachable("the lock is in its lock-delay"))
            }
            Err(_) => Ok(false),
        }
    }

    /// Takes the lock away from its holders, and increments its LockIndex above their tokens.
    pub(super) async fn force_unlock(&self, lock: &str) -> Result<ForcedRelease, Failure> {
        let own = self.create_session(Duration::from_secs(10), Duration::ZERO).await?.session;
        let mut holders = 0;
        let forced = loop {
            let found = self.read(lock).await?;
            if found.session.is_empty() {
                match self.force_unshare(&own, lock, &found).await? {
                    Some(0) => break ForcedRelease { holders, last_token: found.lock_index },
                    Some(count) => holders += count,
                    None => {}
                }
                continue;
            }
            let key = self.key(lock);
            let steps = [
                self.check_unchanged(lock, found.modify_index),
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
