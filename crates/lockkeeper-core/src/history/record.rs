//! Records the history of an entry from its answers and effects, so that every grant and release is recorded without
//! help of the commands.

use smol_str::{SmolStr, format_smolstr};

use super::{ActionKind, Leader, LockEvent, LockEventKind, ShortSession};
use crate::command::Command;
use crate::effect::{Answer, Effect, Freed, Grant, Reply};
use crate::id::{SessionId, Token};
use crate::table::LockTable;

/// The state of the table before a command, needed to record what it changed.
pub(crate) struct Before {
    token: Token,
    effects: usize,
}

impl LockTable {
    /// Captures the state before a command, or before time-driven work.
    pub(crate) fn before(&self) -> Before {
        Before { token: self.last_token, effects: self.effects.len() }
    }

    /// Records what a command changed.
    pub(crate) fn after(&mut self, before: Before, command: &Command, answer: &Answer) {
        let no_reason = SmolStr::default();
        let reason = match command {
            Command::ForceRelease { reason, .. } => reason,
            _ => &no_reason,
        };
        self.remember_effects(before.effects, reason);
        match (command, answer) {
            // A retry is answered with the grant that it already has: nothing changed.
            (Command::Acquire(request), Ok(Reply::Granted(grant))) if grant.token > before.token => {
                self.remember_grant(request.session, grant, 0);
            }
            (Command::ForceRelease { lock, reason, by }, Ok(Reply::Forced { released, last_token })) => {
                let (by, lock, reason) = (by.clone(), lock.clone(), reason.clone());
                let kind = ActionKind::ForceRelease {
                    by,
                    lock,
                    reason,
                    released: *released,
                    last_token: *last_token,
                };
                self.history.record_action(self.now, Some(self.utc_ms), kind);
            }
            (Command::ChangeAccess { by, change }, Ok(_)) => {
                self.history.record_action(
                    self.now,
                    Some(self.utc_ms),
                    ActionKind::Access { by: by.clone(), change: change.describe() },
                );
            }
            (Command::AuditNote { by, text }, Ok(_)) => {
                let text = self.note_text(text);
                self.history.record_action(
                    self.now,
                    Some(self.utc_ms),
                    ActionKind::Note { by: by.clone(), text },
                );
            }
            (Command::RaiseCellVersion { to }, Ok(_)) => {
                let text = format_smolstr!("the cell version is now {to}");
                self.history.record_action(
                    self.now,
                    Some(self.utc_ms),
                    ActionKind::Note { by: SmolStr::default(), text },
                );
            }
            #[cfg(feature = "next-version")]
            (Command::NextVersionNote { text }, Ok(_)) => {
                let (by, text) = (SmolStr::default(), self.note_text(text));
                self.history.record_action(self.now, Some(self.utc_ms), ActionKind::Note { by, text });
            }
            _ => {}
        }
    }

    /// In test builds, a rule that differs between versions: from the next version on, notes name the version.
    fn note_text(&self, text: &SmolStr) -> SmolStr {
        #[cfg(feature = "next-version")]
        if self.cell_version() >= crate::version::CellVersion::NEXT {
            return format_smolstr!("[version {}] {text}", self.cell_version());
        }
        text.clone()
    }

    /// Records what time-driven work or a deferred task changed; `reason` is that of a force-release.
    pub(crate) fn after_time(&mut self, before: Before, reason: &SmolStr) {
        self.remember_effects(before.effects, reason);
        for session in std::mem::take(&mut self.history.cleared) {
            self.history.owners_of_ended_sessions.remove(&session);
        }
    }

    fn remember_effects(&mut self, from: usize, reason: &SmolStr) {
        if self.effects.len() == from {
            return;
        }
        let effects = std::mem::take(&mut self.effects);
        for effect in &effects[from..] {
            match effect {
                Effect::Granted { session, grant, waited_ms, .. } => {
                    self.remember_grant(*session, grant, *waited_ms);
                }
                Effect::Freed { session, lock, token, why, held_ms } => {
                    let event = LockEvent {
                        at: self.now,
                        utc_ms: self.utc_ms,
                        kind: LockEventKind::Ended(*why),
                        token: *token,
                        mode: None,
                        owner: self.owner(*session),
                        session: ShortSession::from(*session),
                        took_ms: *held_ms,
                        reason: if *why == Freed::Forced { reason.clone() } else { SmolStr::default() },
                    };
                    self.history.push(lock, event);
                }
                Effect::Ended { .. } | Effect::SessionEnded { .. } | Effect::ExpiryStale { .. } => {}
            }
        }
        self.effects = effects;
    }

    fn remember_grant(&mut self, session: SessionId, grant: &Grant, waited_ms: u64) {
        let owner = self.owner(session);
        for lock in grant.locks.as_slice() {
            let event = LockEvent {
                at: self.now,
                utc_ms: self.utc_ms,
                kind: LockEventKind::Granted,
                token: grant.token,
                mode: Some(grant.mode),
                owner: owner.clone(),
                session: ShortSession::from(session),
                took_ms: waited_ms,
                reason: SmolStr::default(),
            };
            self.history.push(lock, event);
        }
    }

    fn owner(&self, session: SessionId) -> SmolStr {
        if let Some((last, owner)) = &self.last_active
            && *last == session
        {
            return owner.clone();
        }
        match self.sessions.get(&session) {
            Some(alive) => alive.owner.clone(),
            None => self.history.owners_of_ended_sessions.get(&session).cloned().unwrap_or_default(),
        }
    }

    /// Records a new leader. Called for an entry of the log, so that every node records the same.
    pub fn note_leader(&mut self, term: u64, node: u64) {
        self.history.record_leader(Leader { at: self.now, utc_ms: None, term, node });
    }

    /// Records a change of members. Called for an entry of the log.
    pub fn note_members(&mut self, members: impl Into<SmolStr>) {
        self.history.record_action(self.now, None, ActionKind::Members { members: members.into() });
    }

    /// Records that the table was restored from a backup.
    pub fn note_restored(&mut self) {
        self.history.record_action(self.now, None, ActionKind::Restored { last_token: self.last_token });
    }
}
