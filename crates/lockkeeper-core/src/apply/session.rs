//! Opens, closes and expires sessions.

use smol_str::SmolStr;

use crate::bounds::bounds;
use crate::effect::{Answer, Effect, Reply, SessionEnd};
use crate::id::SessionId;
use crate::limits;
use crate::mutation::{self, Mutation};
use crate::refusal::Refusal;
use crate::session::Session;
use crate::table::LockTable;
use crate::weighed::{LogicalBytes, RECORD};
use crate::work::LOCK_STEPS;

impl LockTable {
    pub(crate) fn open_session(
        &mut self,
        session: SessionId,
        ttl_ms: u64,
        owner: &SmolStr,
        identity: Option<&SmolStr>,
    ) -> Answer {
        if let Some(identity) = identity {
            limits::check_length("identity", identity.len(), limits::IDENTITY_BYTES_MAX)?;
            self.access.check_session(identity)?;
        }
        limits::check_range("ttl_ms", ttl_ms, limits::TTL_MS_MIN, limits::TTL_MS_MAX)?;
        limits::check_length("owner", owner.len(), limits::OWNER_BYTES_MAX)?;
        // Remains of an ended session with this id would be attributed to the new one.
        if self.sessions.contains_key(&session) || self.has_remains(session) {
            return Err(Refusal::invalid("a session with this id already exists: open another"));
        }
        if self.sessions.len() >= bounds().sessions {
            return Err(Refusal::limit(format!(
                "the cell has {} sessions, its limit: close some, or share one session in each process",
                bounds().sessions
            )));
        }
        let opened = Session { identity: identity.cloned(), ..Session::new(ttl_ms, owner.clone(), self.now) };
        self.check_state_bytes(RECORD + opened.logical_bytes())?;
        self.last_active = None;
        let version = opened.version;
        self.sessions.insert(session, opened);
        if let Some(identity) = identity {
            self.access.session_opened(identity);
        }
        Ok(Reply::SessionOpened { ttl_ms, version })
    }

    pub(crate) fn close_session(&mut self, session: SessionId) -> Answer {
        if !self.sessions.contains_key(&session) {
            return Err(Refusal::SessionLost);
        }
        self.end_session(session, SessionEnd::Closed);
        Ok(Reply::Done)
    }

    pub(crate) fn expire_session(&mut self, session: SessionId, version: u64) -> Answer {
        match self.sessions.get(&session) {
            None => Err(Refusal::SessionLost),
            Some(alive) if alive.version != version && !mutation::is_on(Mutation::ExpiryIgnoresVersion) => {
                // The session was active after the leader decided: the expiry is stale (S3).
                self.effects.push(Effect::ExpiryStale { session });
                Ok(Reply::Done)
            }
            Some(_) => {
                self.end_session(session, SessionEnd::Expired);
                Ok(Reply::Done)
            }
        }
    }

    /// Ends a session: from now on its commands are refused. What it holds is freed in slices (see `reap`); until then
    /// the locks stay held without an owner, which delays the next grant but is safe.
    fn end_session(&mut self, session: SessionId, why: SessionEnd) {
        let Some(ended) = self.sessions.remove(&session) else { return };
        self.work.charge(LOCK_STEPS);
        if let Some(identity) = &ended.identity {
            self.access.session_ended(identity);
        }
        if self.has_remains(session) {
            if ended.grants > 0 {
                self.history.session_ended(session, ended.owner);
            }
            self.ending.insert(self.ending_next, (session, why));
            self.ending_next += 1;
        }
        self.effects.push(Effect::SessionEnded { session, why });
    }

    /// Records activity of a live session by raising its version.
    pub(crate) fn touch_session(&mut self, session: SessionId) -> Result<&mut Session, Refusal> {
        let alive = self.sessions.get_mut(&session).ok_or(Refusal::SessionLost)?;
        alive.version += 1;
        if self.last_active.as_ref().is_none_or(|(last, _)| *last != session) {
            self.last_active = Some((session, alive.owner.clone()));
        }
        Ok(alive)
    }
}
