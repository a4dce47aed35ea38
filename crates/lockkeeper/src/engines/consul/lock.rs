//! Acquire and release: transactions with the state that was seen as their condition.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::Consul;
use super::session::ConsulSession;
use super::token::Key;
use crate::engines::base::{Entered, Failure, Ticket, Try};
use crate::view::ForcedRelease;

/// How many locks' last state is remembered.
const SEEN_MAX: usize = 10_000;

/// What became of an attempt to lock the key.
pub(super) enum Tried {
    /// It is ours, with this token.
    Locked(u64),
    /// Somebody has it.
    Held,
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
    fn unchanged(&self, lock: &str, index: u64) -> Json {
        match index {
            0 => json!({"Verb": "check-not-exists", "Key": self.key(lock)}),
            index => json!({"Verb": "check-index", "Key": self.key(lock), "Index": index}),
        }
    }

    pub(super) async fn try_lock(&self, session: &ConsulSession, ticket: &Ticket) -> Result<Tried, Failure> {
        let was_in_doubt = ticket.in_doubt.load(Ordering::Relaxed);
        // A lock that we released ourselves is mostly as we left it: that saves a question.
        let mut guess = if was_in_doubt { None } else { self.last_seen_free(&ticket.lock) };
        loop {
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
                    key.modify_index
                }
            };
            let steps = [
                self.unchanged(&ticket.lock, index),
                json!({
                    "Verb": "lock",
                    "Key": self.key(&ticket.lock),
                    "Value": self.value(ticket),
                    "Session": session.id,
                }),
            ];
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
                        let change = json!({"Verb": "set", "Key": self.key(&ticket.lock), "Value": ""});
                        let steps = [self.unchanged(&ticket.lock, key.modify_index), change];
                        match self.transaction(&steps).await? {
                            Ok(_) => return Ok(false),
                            Err(_) => continue,
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

    /// Takes the lock from whoever has it, and raises its LockIndex above theirs.
    pub(super) async fn unlock_by_force(&self, lock: &str) -> Result<ForcedRelease, Failure> {
        let own = self.create_session(Duration::from_secs(10), Duration::ZERO).await?.session;
        let forced = loop {
            let found = self.read(lock).await?;
            if found.session.is_empty() {
                break ForcedRelease { holders: 0, last_token: found.lock_index };
            }
            let key = self.key(lock);
            let steps = [
                self.unchanged(lock, found.modify_index),
                json!({"Verb": "unlock", "Key": key, "Value": "", "Session": found.session}),
                json!({"Verb": "lock", "Key": key, "Value": "", "Session": own.id}),
                json!({"Verb": "unlock", "Key": key, "Value": "", "Session": own.id}),
            ];
            if let Ok(key) = self.transaction(&steps).await? {
                break ForcedRelease { holders: 1, last_token: key.lock_index };
            }
        };
        let _ = self.destroy_session(&own).await;
        Ok(forced)
    }
}
