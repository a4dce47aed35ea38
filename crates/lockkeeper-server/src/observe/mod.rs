//! What people look at: the history of a lock, what operators did, contention, who waits for whom, and the sessions. Each
//! is made out of the lock table; HTTP, gRPC, the console and the CLI show the same types.
//!
//! Each has a bound of its own, so that a million locks cost no more than a hundred.

pub mod console;
pub mod disk;
pub mod figures;
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
use crate::expiry::Expiry;
use crate::hourly_stats::HourlyStats;

/// Acts and changes of the leader shown, if the request names no number.
const ACTS_DEFAULT: usize = 100;
/// Locks shown in each list, if the request names no number.
const TOP_DEFAULT: usize = 10;
/// Most locks shown in each list.
const TOP_MAX: usize = 100;
/// Sessions in a page, if the request names no number.
const SESSIONS_DEFAULT: usize = 100;
/// Most sessions in a page.
const SESSIONS_MAX: usize = 1_000;
/// Most sessions that are looked at for one page, which takes about a millisecond. The next page continues there.
const SESSIONS_LOOKED_AT_MAX: usize = 10_000;

impl View<'_> {
    /// The history of a lock, at most `limit` events; 0 means all there are.
    pub fn history(&self, lock: &LockName, limit: usize) -> LockHistory {
        let limit = if limit == 0 { EVENTS_PER_LOCK_MAX } else { limit };
        let events = self.table.history(lock).take(limit);
        let events = events.map(|event| LockEvent::new(event, self.now)).collect();
        LockHistory { lock: lock.to_string(), events }
    }

    /// At most `limit` acts and as many changes of the leader; 0 means a hundred.
    pub fn audit(&self, limit: usize) -> Audit {
        let limit = if limit == 0 { ACTS_DEFAULT } else { limit };
        let acts = self.table.acts().take(limit).map(|act| AuditAct::new(act, self.now));
        let leaders = self.table.leaders().take(limit).map(|leader| LeaderChange::new(leader, self.now));
        Audit { acts: acts.collect(), leaders: leaders.collect() }
    }

    /// At most `limit` locks in each list; 0 means ten.
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

    /// For one lock and what its holders wait for in turn, or for the whole cell.
    pub fn graph(&self, lock: Option<&LockName>) -> WaitGraph {
        WaitGraph::new(self.table.wait_graph(lock, self.now), self.table.counts().waiting)
    }

    /// A page of sessions.
    pub fn sessions(&self, expiry: &Expiry, filter: &SessionFilter) -> SessionPage {
        let limit = if filter.limit == 0 { SESSIONS_DEFAULT } else { filter.limit.min(SESSIONS_MAX) };
        let mut found: Vec<(SessionId, _)> = Vec::new();
        let (mut last, mut next) = (filter.after, None);
        for (looked_at, (id, session)) in self.table.sessions_after(filter.after).enumerate() {
            let fits = filter.owner.is_empty() || session.owner.contains(&filter.owner);
            if looked_at == SESSIONS_LOOKED_AT_MAX || (fits && found.len() == limit) {
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
