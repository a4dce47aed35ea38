//! History: the last events of a lock, the actions of operators, the leaders of the cell.

use std::time::Duration;

use lockkeeper_core::history::{
    ActionKind, Leader as LeaderRecord, LockEvent as EventRecord, LockEventKind as EventKind, OperatorAction,
};
use lockkeeper_core::{CellTime, Freed, Mode, Refusal};
use serde::{Deserialize, Serialize};

use crate::request::{Answer, Call, Limit, Request, lock_name};
use crate::v1;
use crate::wire::{answers, mirror, string_enum};

/// The last events of one lock, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockHistory {
    /// The lock.
    pub lock: String,
    /// The events.
    pub events: Vec<LockEvent>,
}

string_enum!(
    /// What happened to a grant of a lock.
    LockEventKind {
        /// The lock was granted.
        Granted = "granted",
        /// The holder released it.
        Released = "released",
        /// Its session was closed.
        SessionClosed = "session_closed",
        /// Its session expired.
        SessionExpired = "session_expired",
        /// An operator released it by force.
        Forced = "forced",
        /// Its caller cancelled the request, or disconnected.
        Cancelled = "cancelled",
        /// An older scope took it.
        Wounded = "wounded",
    }
);

impl From<Freed> for LockEventKind {
    fn from(freed: Freed) -> LockEventKind {
        match freed {
            Freed::Released => LockEventKind::Released,
            Freed::SessionClosed => LockEventKind::SessionClosed,
            Freed::SessionExpired => LockEventKind::SessionExpired,
            Freed::Forced => LockEventKind::Forced,
            Freed::Cancelled => LockEventKind::Cancelled,
            Freed::Wounded => LockEventKind::Wounded,
        }
    }
}

string_enum!(
    /// What an operator did, or a change of the cell that is recorded like one.
    AuditActKind {
        /// A lock was released by force.
        ForceRelease = "force_release",
        /// The members changed.
        Members = "members",
        /// The cell was restored from a backup.
        Restored = "restored",
        /// Access control changed.
        Access = "access",
        /// A change that has no fields of its own.
        Note = "note",
    }
);

impl Default for AuditActKind {
    fn default() -> AuditActKind {
        AuditActKind::Other(Default::default())
    }
}

/// An event of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockEvent {
    /// `granted`, or how a grant ended: `released`, `session_closed`, `session_expired`, `forced`, `cancelled`, `wounded`.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub what: LockEventKind,
    /// When, in cell time.
    pub at_ms: u64,
    /// The leader's wall clock at that time, in milliseconds since 1970 UTC. For people: it may be wrong.
    pub utc_ms: u64,
    /// How long ago, in cell time.
    #[serde(rename = "ago_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub ago: Duration,
    /// The token of the grant.
    pub token: u64,
    /// The mode, for a grant.
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::acquire::optional_mode_schema"))]
    pub mode: Option<Mode>,
    /// The owner of the session.
    pub owner: String,
    /// The first eight digits of the session's id.
    pub session: String,
    /// How long the request waited for the grant.
    #[serde(rename = "waited_ms", serialize_with = "crate::ms::option::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>"))]
    pub waited: Option<Duration>,
    /// How long the lock was held when the grant ended.
    #[serde(rename = "held_ms", serialize_with = "crate::ms::option::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>"))]
    pub held: Option<Duration>,
    /// The reason for a force-release.
    pub reason: Option<String>,
}

/// The actions of operators and the leaders of the cell, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Audit {
    /// The actions of operators.
    pub acts: Vec<AuditAct>,
    /// The leader changes.
    pub leaders: Vec<LeaderChange>,
}

/// An action of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditAct {
    /// Its number among all actions of the cell.
    pub number: u64,
    /// `force_release`, `members`, `restored`, `access` or `note`.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub what: AuditActKind,
    /// When, in cell time.
    pub at_ms: u64,
    /// The leader's wall clock at that time, in milliseconds since 1970 UTC; null until it is recorded.
    pub utc_ms: Option<u64>,
    /// How long ago, in cell time.
    #[serde(rename = "ago_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub ago: Duration,
    /// The lock that was force-released.
    pub lock: Option<String>,
    /// The operator's reason.
    pub reason: Option<String>,
    /// The number of grants that were taken away.
    pub released: Option<u32>,
    /// The lock's last token afterwards.
    pub last_token: Option<u64>,
    /// The new members.
    pub members: Option<String>,
    /// The caller, if it was authenticated.
    pub by: Option<String>,
    /// The change or action, in one line.
    pub change: Option<String>,
}

/// A node that became leader of the cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeaderChange {
    /// When, in cell time.
    pub at_ms: u64,
    /// The leader's wall clock at that time, in milliseconds since 1970 UTC; null until it is recorded.
    pub utc_ms: Option<u64>,
    /// How long ago, in cell time.
    #[serde(rename = "ago_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub ago: Duration,
    /// The term.
    pub term: u64,
    /// The node.
    pub node_id: u64,
}

mirror!(LockHistory = v1::LockHistory { lock, events });
mirror!(LockEvent = v1::LockEvent {
    what, at_ms, utc_ms, token, mode, owner, session, reason; ago = ago_ms, waited = waited_ms, held = held_ms
});
mirror!(Audit = v1::Audit { acts, leaders });
mirror!(AuditAct = v1::AuditAct {
    number, what, at_ms, utc_ms, lock, reason, released, last_token, members, by, change; ago = ago_ms
});
mirror!(LeaderChange = v1::LeaderChange { at_ms, utc_ms, term, node_id; ago = ago_ms });

fn ago(now: CellTime, at: CellTime) -> Duration {
    Duration::from_millis(now.ms_since(at))
}

impl LockEvent {
    /// Converts an event of the lock table, with its age at `now`.
    pub fn new(event: &EventRecord, now: CellTime) -> LockEvent {
        let granted = event.kind == EventKind::Granted;
        let took = Duration::from_millis(event.took_ms);
        LockEvent {
            what: match event.kind {
                EventKind::Granted => LockEventKind::Granted,
                EventKind::Ended(freed) => freed.into(),
            },
            at_ms: event.at.0 / 1_000,
            utc_ms: event.utc_ms,
            ago: ago(now, event.at),
            token: event.token.0,
            mode: event.mode,
            owner: event.owner.to_string(),
            session: event.session.to_string(),
            waited: granted.then_some(took),
            held: (!granted).then_some(took),
            reason: (!event.reason.is_empty()).then(|| event.reason.to_string()),
        }
    }
}

impl AuditAct {
    /// Converts an action of the audit trail, with its age at `now`.
    pub fn new(act: &OperatorAction, now: CellTime) -> AuditAct {
        let mut shown = AuditAct {
            number: act.number,
            what: act.kind.as_str().into(),
            at_ms: act.at.0 / 1_000,
            utc_ms: act.utc_ms,
            ago: ago(now, act.at),
            ..AuditAct::default()
        };
        let known = |by: &str| (!by.is_empty()).then(|| by.to_owned());
        match &act.kind {
            ActionKind::ForceRelease { by, lock, reason, released, last_token } => {
                shown.by = known(by);
                shown.lock = Some(lock.to_string());
                shown.reason = Some(reason.to_string());
                shown.released = Some(*released);
                shown.last_token = Some(last_token.0);
            }
            ActionKind::Access { by, change } => {
                shown.by = known(by);
                shown.change = Some(change.to_string());
            }
            ActionKind::Note { by, text } => {
                shown.by = known(by);
                shown.change = Some(text.to_string());
            }
            ActionKind::Members { members } => shown.members = Some(members.to_string()),
            ActionKind::Restored { last_token } => shown.last_token = Some(last_token.0),
        }
        shown
    }
}

impl LeaderChange {
    /// Converts a leader change, with its age at `now`.
    pub fn new(leader: LeaderRecord, now: CellTime) -> LeaderChange {
        LeaderChange {
            at_ms: leader.at.0 / 1_000,
            utc_ms: leader.utc_ms,
            ago: ago(now, leader.at),
            term: leader.term,
            node_id: leader.node,
        }
    }
}

/// Request for the last events of a lock.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetHistory {
    /// The lock.
    pub name: String,
    /// Maximum number of events; all (up to 32) if absent or 0.
    #[serde(default)]
    pub limit: Limit,
}

impl Call for GetHistory {
    type Answer = LockHistory;

    fn into_request(self) -> Result<Request, Refusal> {
        let limit = self.limit.number()?;
        Ok(Request::History { lock: lock_name(self.name)?, limit })
    }
}

impl TryFrom<v1::GetHistoryRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::GetHistoryRequest) -> Result<Request, Refusal> {
        Ok(Request::History { lock: lock_name(request.lock)?, limit: request.limit as usize })
    }
}

/// Request for the actions of operators and the leaders of the cell.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetAudit {
    /// Maximum number of actions; 100 if absent or 0.
    pub limit: Limit,
}

impl Call for GetAudit {
    type Answer = Audit;

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::Audit { limit: self.limit.number()? })
    }
}

impl From<v1::GetAuditRequest> for Request {
    fn from(request: v1::GetAuditRequest) -> Request {
        Request::Audit { limit: request.limit as usize }
    }
}

answers! {
    Answer::History(history) => LockHistory as history;
    Answer::Audit(audit) => Audit as audit;
    Answer::History(history) => v1::LockHistory as history.into();
    Answer::Audit(audit) => v1::Audit as audit.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_lock_table_are_known() {
        let freed = [
            Freed::Released,
            Freed::SessionClosed,
            Freed::SessionExpired,
            Freed::Forced,
            Freed::Cancelled,
            Freed::Wounded,
        ];
        for freed in freed {
            assert_eq!(LockEventKind::from(freed.as_str()), LockEventKind::from(freed));
        }
        assert_eq!(LockEventKind::from(EventKind::Granted.as_str()), LockEventKind::Granted);
        let kinds = [
            ActionKind::ForceRelease {
                by: "".into(),
                lock: "a".into(),
                reason: "".into(),
                released: 0,
                last_token: lockkeeper_core::Token(1),
            },
            ActionKind::Members { members: "".into() },
            ActionKind::Restored { last_token: lockkeeper_core::Token(1) },
            ActionKind::Access { by: "".into(), change: "".into() },
            ActionKind::Note { by: "".into(), text: "".into() },
        ];
        for kind in kinds {
            assert!(!matches!(kind.as_str().into(), AuditActKind::Other(_)), "{kind:?}");
        }
    }

    #[test]
    fn word_of_a_newer_version_is_kept() {
        assert_eq!(LockEventKind::from("archived").as_str(), "archived");
    }
}
