//! The last events of one lock.

use lockkeeper_api::v1;
use lockkeeper_core::LockName;
use lockkeeper_core::history::{EVENTS_PER_LOCK_MAX, LockEvent, What};
use serde::Serialize;

use super::Look;
use crate::failure::Failure;

/// The last events of one lock, the newest first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockHistory {
    /// The lock.
    pub lock: String,
    /// The events.
    pub events: Vec<Event>,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// `granted`, or how a grant ended.
    pub what: &'static str,
    /// When, in cell time.
    pub at_ms: u64,
    /// The leader's wall clock at that moment, in milliseconds since 1970 UTC.
    pub utc_ms: u64,
    /// How long ago, in cell time.
    pub ago_ms: u64,
    /// The token of the grant.
    pub token: u64,
    /// `exclusive` or `shared`, for a grant.
    pub mode: Option<&'static str>,
    /// Who.
    pub owner: String,
    /// The beginning of the session's id.
    pub session: String,
    /// How long a grant was waited for.
    pub waited_ms: Option<u64>,
    /// How long it had been held when it ended.
    pub held_ms: Option<u64>,
    /// Why it was taken away by force.
    pub reason: Option<String>,
}

impl Look<'_> {
    /// The history of a lock, at most `limit` events; 0 means all there are.
    pub fn history(&self, lock: &str, limit: usize) -> Result<LockHistory, Failure> {
        lockkeeper_core::limits::check_name("name of the lock", lock)?;
        let limit = if limit == 0 { EVENTS_PER_LOCK_MAX } else { limit };
        let events = self.table.history(&LockName::from(lock)).take(limit);
        Ok(LockHistory { lock: lock.to_owned(), events: events.map(|event| self.event(event)).collect() })
    }

    fn event(&self, event: &LockEvent) -> Event {
        let granted = event.what == What::Granted;
        Event {
            what: event.what.as_str(),
            at_ms: event.at.0 / 1_000,
            utc_ms: event.utc_ms,
            ago_ms: self.now.ms_since(event.at),
            token: event.token.0,
            mode: event.mode.map(lockkeeper_core::Mode::as_str),
            owner: event.owner.to_string(),
            session: event.session.to_string(),
            waited_ms: granted.then_some(event.took_ms),
            held_ms: (!granted).then_some(event.took_ms),
            reason: (!event.reason.is_empty()).then(|| event.reason.to_string()),
        }
    }
}

impl From<LockHistory> for v1::LockHistory {
    fn from(history: LockHistory) -> v1::LockHistory {
        let events = history.events.into_iter().map(|event| v1::LockEvent {
            what: event.what.to_owned(),
            at_ms: event.at_ms,
            utc_ms: event.utc_ms,
            ago_ms: event.ago_ms,
            token: event.token,
            mode: event.mode.unwrap_or_default().to_owned(),
            owner: event.owner,
            session: event.session,
            waited_ms: event.waited_ms,
            held_ms: event.held_ms,
            reason: event.reason.unwrap_or_default(),
        });
        v1::LockHistory { lock: history.lock, events: events.collect() }
    }
}
