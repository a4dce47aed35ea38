//! Where to look first: the most crowded locks, those held the longest, and the last hour in figures.

use lockkeeper_api::v1;
use serde::Serialize;

use super::Look;
use crate::hourly_stats::{Hour, HourlyStats, Spread};

/// Locks shown, if nobody names a number.
const SHOWN: usize = 10;
/// Most locks shown.
const SHOWN_MAX: usize = 100;

/// Where to look first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Top {
    /// The locks that most wait for.
    pub contended: Vec<Contended>,
    /// The locks that are held the longest.
    pub longest_held: Vec<LongHeld>,
    /// There were too many to look at all of them.
    pub sampled: bool,
    /// The last hour.
    pub hour: Hour,
}

/// A lock that many wait for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Contended {
    /// The lock.
    pub lock: String,
    /// How many wait.
    pub waiting: u32,
    /// How long the first of them has waited.
    pub waited_ms: u64,
    /// Who holds it.
    pub owner: String,
}

/// A lock that has been held for long.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LongHeld {
    /// The lock.
    pub lock: String,
    /// For how long.
    pub held_ms: u64,
    /// The token.
    pub token: u64,
    /// Who holds it.
    pub owner: String,
    /// How many wait for it.
    pub waiting: u32,
}

impl Look<'_> {
    /// At most `limit` locks in each list; 0 means ten.
    pub fn top(&self, hourly_stats: &HourlyStats, limit: usize) -> Top {
        let limit = if limit == 0 { SHOWN } else { limit.min(SHOWN_MAX) };
        let (contended, many_locks) = self.table.most_contended(self.now, limit);
        let (longest, many_sessions) = self.table.longest_held(self.now, limit);
        Top {
            contended: contended
                .into_iter()
                .map(|lock| Contended {
                    lock: lock.lock.to_string(),
                    waiting: lock.waiting,
                    waited_ms: lock.waited_ms,
                    owner: lock.owner.to_string(),
                })
                .collect(),
            longest_held: longest
                .into_iter()
                .map(|held| LongHeld {
                    lock: held.lock.to_string(),
                    held_ms: held.held_ms,
                    token: held.token.0,
                    owner: held.owner.to_string(),
                    waiting: held.waiting,
                })
                .collect(),
            sampled: many_locks || many_sessions,
            hour: hourly_stats.hour(self.now),
        }
    }
}

fn spread(spread: Spread) -> v1::Spread {
    v1::Spread { count: spread.count, p50_ms: spread.p50_ms, p99_ms: spread.p99_ms }
}

impl From<Top> for v1::Top {
    fn from(top: Top) -> v1::Top {
        let contended = top.contended.into_iter().map(|lock| v1::Contended {
            lock: lock.lock,
            waiting: lock.waiting,
            waited_ms: lock.waited_ms,
            owner: lock.owner,
        });
        let longest_held = top.longest_held.into_iter().map(|held| v1::LongHeld {
            lock: held.lock,
            held_ms: held.held_ms,
            token: held.token,
            owner: held.owner,
            waiting: held.waiting,
        });
        v1::Top {
            contended: contended.collect(),
            longest_held: longest_held.collect(),
            sampled: top.sampled,
            waited: Some(spread(top.hour.waited)),
            held: Some(spread(top.hour.held)),
            granted: top.hour.granted,
            lost: top.hour.lost,
        }
    }
}
