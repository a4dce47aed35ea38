//! What operators did, and who led the cell.

use lockkeeper_api::v1;
use lockkeeper_core::history::{Act, Deed};
use serde::Serialize;

use super::Look;

/// Acts and elections shown, if nobody names a number.
const SHOWN: usize = 100;

/// What operators did, and who led the cell; the newest first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Audit {
    /// What operators did.
    pub acts: Vec<AuditAct>,
    /// Who came to lead.
    pub leaders: Vec<LeaderChange>,
}

/// One act of an operator.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuditAct {
    /// Counts all acts of the cell.
    pub number: u64,
    /// `force_release`, `members`, `restored`, `access` or `note`.
    pub what: &'static str,
    /// When, in cell time.
    pub at_ms: u64,
    /// The leader's wall clock at that moment, in milliseconds since 1970 UTC; null for a moment, until it is recorded.
    pub utc_ms: Option<u64>,
    /// How long ago, in cell time.
    pub ago_ms: u64,
    /// The lock that was freed.
    pub lock: Option<String>,
    /// Why, in the operator's words.
    pub reason: Option<String>,
    /// How many holders it was taken from.
    pub released: Option<u32>,
    /// The last token afterwards.
    pub last_token: Option<u64>,
    /// The members since then.
    pub members: Option<String>,
    /// Who did it, if it is known.
    pub by: Option<String>,
    /// What was changed or done, in a line.
    pub change: Option<String>,
}

/// A node came to lead the cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeaderChange {
    /// When, in cell time.
    pub at_ms: u64,
    /// The leader's wall clock at that moment, in milliseconds since 1970 UTC; null for a moment, until it is recorded.
    pub utc_ms: Option<u64>,
    /// How long ago, in cell time.
    pub ago_ms: u64,
    /// The term.
    pub term: u64,
    /// The node.
    pub node_id: u64,
}

impl Look<'_> {
    /// At most `limit` acts and as many elections; 0 means a hundred.
    pub fn audit(&self, limit: usize) -> Audit {
        let limit = if limit == 0 { SHOWN } else { limit };
        Audit {
            acts: self.table.acts().take(limit).map(|act| self.act(act)).collect(),
            leaders: self
                .table
                .leaders()
                .take(limit)
                .map(|leader| LeaderChange {
                    at_ms: leader.at.0 / 1_000,
                    utc_ms: leader.utc_ms,
                    ago_ms: self.now.ms_since(leader.at),
                    term: leader.term,
                    node_id: leader.node,
                })
                .collect(),
        }
    }

    fn act(&self, act: &Act) -> AuditAct {
        let mut shown = AuditAct {
            number: act.number,
            what: act.deed.as_str(),
            at_ms: act.at.0 / 1_000,
            utc_ms: act.utc_ms,
            ago_ms: self.now.ms_since(act.at),
            lock: None,
            reason: None,
            released: None,
            last_token: None,
            members: None,
            by: None,
            change: None,
        };
        let known = |by: &str| (!by.is_empty()).then(|| by.to_owned());
        match &act.deed {
            Deed::ForceRelease { by, lock, reason, released, last_token } => {
                shown.by = known(by);
                shown.lock = Some(lock.to_string());
                shown.reason = Some(reason.to_string());
                shown.released = Some(*released);
                shown.last_token = Some(last_token.0);
            }
            Deed::Access { by, change } => {
                shown.by = known(by);
                shown.change = Some(change.to_string());
            }
            Deed::Note { by, text } => {
                shown.by = known(by);
                shown.change = Some(text.to_string());
            }
            Deed::Members { members } => shown.members = Some(members.to_string()),
            Deed::Restored { last_token } => shown.last_token = Some(last_token.0),
        }
        shown
    }
}

impl From<Audit> for v1::Audit {
    fn from(audit: Audit) -> v1::Audit {
        let acts = audit.acts.into_iter().map(|act| v1::AuditAct {
            number: act.number,
            what: act.what.to_owned(),
            at_ms: act.at_ms,
            utc_ms: act.utc_ms,
            ago_ms: act.ago_ms,
            lock: act.lock.unwrap_or_default(),
            reason: act.reason.unwrap_or_default(),
            released: act.released,
            last_token: act.last_token,
            members: act.members.unwrap_or_default(),
            by: act.by.unwrap_or_default(),
            change: act.change.unwrap_or_default(),
        });
        let leaders = audit.leaders.into_iter().map(|leader| v1::LeaderChange {
            at_ms: leader.at_ms,
            utc_ms: leader.utc_ms,
            ago_ms: leader.ago_ms,
            term: leader.term,
            node_id: leader.node_id,
        });
        v1::Audit { acts: acts.collect(), leaders: leaders.collect() }
    }
}
