//! Views for people: the history of a lock, the audit trail, contention, the wait graph, and sessions. All are built from the
//! lock table; HTTP, gRPC, the console and the CLI show the same types.
//!
//! Each view is bounded, so that a million locks cost no more than a hundred.

pub mod console;
pub mod disk;
pub mod metrics;
#[cfg(test)]
mod tests;

use std::time::Duration;

use lockkeeper_api::graph::WaitGraph;
use lockkeeper_api::history::{Audit, AuditAct, LeaderChange, LockEvent, LockHistory};
use lockkeeper_api::session::{SessionFilter, SessionPage, SessionState};
use lockkeeper_api::top::Top;
use lockkeeper_core::history::{EVENTS_PER_LOCK_MAX, ShortSession};
use lockkeeper_core::{LockName, SessionId};

use crate::api::View;
use crate::leader::expiry::Expiry;
use crate::metrics::hourly_stats::HourlyStats;

/// Acts and leader changes shown if the request has no limit.
const ACTS_DEFAULT: usize = 100;
/// Locks shown in each list if the request has no limit.
const TOP_DEFAULT: usize = 10;
/// Most locks shown in each list.
const TOP_MAX: usize = 100;
/// Sessions in a page if the request has no limit.
const SESSIONS_DEFAULT: usize = 100;
/// Most sessions in a page.
const SESSIONS_MAX: usize = 1_000;
/// Most sessions scanned for one page, which takes about a millisecond. The next page continues there.
const SESSIONS_SCANNED_MAX: usize = 10_000;

impl View<'_> {
    /// Returns the history of a lock, at most `limit` events; 0 means all.
    pub fn history(&self, lock: &LockName, limit: usize) -> LockHistory {
        let limit = if limit == 0 { EVENTS_PER_LOCK_MAX } else { limit };
        let events = self.table.history(lock).take(limit);
        let events = events.map(|event| LockEvent::new(event, self.now)).collect();
        LockHistory { lock: lock.to_string(), events }
    }

    /// Returns at most `limit` acts of operators and as many leader changes; 0 means a hundred.
    pub fn audit(&self, limit: usize) -> Audit {
        let limit = if limit == 0 { ACTS_DEFAULT } else { limit };
        let acts = self.table.acts().take(limit).map(|act| AuditAct::new(act, self.now));
        let leaders = self.table.leaders().take(limit).map(|leader| LeaderChange::new(leader, self.now));
        Audit { acts: acts.collect(), leaders: leaders.collect() }
    }

    /// Returns the most contended and the longest held locks, at most `limit` in each list; 0 means ten.
    pub fn top(&self, hourly_stats: &HourlyStats, limit: usize) -> Top {
        let limit = if limit == 0 { TOP_DEFAULT } else { limit.min(TOP_MAX) };
        let (contended, many_locks) = self.table.most_contended(self.now, limit);
        let (longest_held, many_sessions) = self.table.longest_held(self.now, limit);
        Top {
            contended: contended.into_iter().map(Into::into).collect(),
            longest_held: longest_held.into_iter().map(Into::into).collect(),
            sampled: many_locks || many_sessions,
            hour: hourly_stats.hour(self.now),
        }
    }

    /// Returns the wait graph of the whole cell, or of one lock and what its holders wait for in turn.
    pub fn graph(&self, lock: Option<&LockName>) -> WaitGraph {
        WaitGraph::new(self.table.wait_graph(lock, self.now), self.table.counts().waiting)
    }

    /// Returns a page of sessions.
    pub fn sessions(&self, expiry: &Expiry, filter: &SessionFilter) -> SessionPage {
        let limit = if filter.limit == 0 { SESSIONS_DEFAULT } else { filter.limit.min(SESSIONS_MAX) };
        let mut found: Vec<(SessionId, _)> = Vec::new();
        let (mut last, mut next) = (filter.after, None);
        for (scanned, (id, session)) in self.table.sessions_after(filter.after).enumerate() {
            let fits = filter.owner.is_empty() || session.owner.contains(&filter.owner);
            if scanned == SESSIONS_SCANNED_MAX || (fits && found.len() == limit) {
                next = last;
                break;
            }
            last = Some(ShortSession::from(id));
            if fits {
                found.push((id, session));
            }
        }
        let shown = found.into_iter().map(|(id, session)| SessionState {
            session: ShortSession::from(id).to_string(),
            owner: session.owner.to_string(),
            ttl: Duration::from_millis(session.ttl_ms),
            remaining: expiry.remaining_ms(id).map(Duration::from_millis),
            age: Duration::from_millis(self.now.ms_since(session.opened)),
            grants: session.grants(),
            waits: session.waits(),
        });
        SessionPage {
            sessions: shown.collect(),
            more: next.is_some(),
            next: next.map(|next| next.to_string()),
            total: self.table.counts().sessions,
        }
    }
}
