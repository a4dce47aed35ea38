//! The sessions and their remaining time.

use lockkeeper_core::SessionId;
use lockkeeper_core::history::ShortSession;
use serde::Serialize;

use super::Look;
use crate::expiry::Expiry;
use crate::failure::Failure;

/// Sessions in a page, if nobody names a number.
const PAGE: usize = 100;
/// Most sessions in a page.
const PAGE_MAX: usize = 1_000;
/// Most sessions that are looked at for one page, which takes about a millisecond. The next page continues there.
const LOOKED_AT_MAX: usize = 10_000;

/// Which sessions.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// From the one behind this, by the beginning of its id.
    pub after: Option<ShortSession>,
    /// Only those whose owner contains this.
    pub owner: String,
    /// At most so many; 0 means a hundred.
    pub limit: usize,
}

/// A page of sessions, in the order of their ids.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionPage {
    /// The sessions.
    pub sessions: Vec<SessionState>,
    /// There may be more.
    pub more: bool,
    /// Where the next page begins, if there are more: to be named as `after`.
    pub next: Option<String>,
    /// How many there are in the cell.
    pub total: u64,
}

/// A session as people see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionState {
    /// The beginning of its id: enough to tell sessions apart, and not enough to act in its name.
    pub session: String,
    /// Who it is.
    pub owner: String,
    /// How long it lives without a renewal.
    pub ttl_ms: u64,
    /// How long it still lives; only the leader knows.
    pub remaining_ms: Option<u64>,
    /// How long ago it was opened.
    pub age_ms: u64,
    /// How many grants it holds.
    pub grants: u32,
    /// How many of its requests wait.
    pub waits: u32,
}

impl Wanted {
    /// The place in the list as a page before has shown it.
    pub fn behind(text: &str) -> Result<Option<ShortSession>, Failure> {
        if text.is_empty() {
            return Ok(None);
        }
        let digits = text.get(..8).unwrap_or(text);
        u32::from_str_radix(digits, 16).map(|short| Some(ShortSession(short))).map_err(|_| {
            Failure::Invalid(format!(
                "after is \"{text}\", not the session of a page before: eight digits or more"
            ))
        })
    }
}

impl Look<'_> {
    /// A page of sessions.
    pub fn sessions(&self, expiry: &Expiry, wanted: &Wanted) -> SessionPage {
        let limit = if wanted.limit == 0 { PAGE } else { wanted.limit.min(PAGE_MAX) };
        let mut found: Vec<(SessionId, _)> = Vec::new();
        let (mut last, mut next) = (wanted.after, None);
        for (looked_at, (id, session)) in self.table.sessions_after(wanted.after).enumerate() {
            let fits = wanted.owner.is_empty() || session.owner.contains(&wanted.owner);
            if looked_at == LOOKED_AT_MAX || (fits && found.len() == limit) {
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
            ttl_ms: session.ttl_ms,
            remaining_ms: expiry.remaining_ms(id),
            age_ms: self.now.ms_since(session.opened),
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

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use lockkeeper_core::{Batch, CellTime, Command, LockTable};

    use super::*;

    #[test]
    fn a_page_looks_at_a_bounded_number_of_sessions_and_the_next_one_continues_there() {
        let open = |number: usize| Command::OpenSession {
            session: SessionId((number as u128) << 96),
            ttl_ms: 1_000,
            owner: if number == 2 * LOOKED_AT_MAX { "wanted".into() } else { "other".into() },
            identity: None,
        };
        let mut table = LockTable::new();
        let commands = (1..=3 * LOOKED_AT_MAX).map(open).collect();
        table.apply(1, &Batch { now: CellTime(1), utc_ms: 0, commands }).expect("the first entry");
        let table = Mutex::new(table);
        let look = Look { table: table.lock().unwrap_or_else(PoisonError::into_inner), now: CellTime(1) };
        let expiry = Expiry::default();
        let (mut after, mut pages) = (None, Vec::new());
        loop {
            let wanted = Wanted { after, owner: "wanted".to_owned(), limit: 5 };
            let page = look.sessions(&expiry, &wanted);
            pages.push(page.sessions.len());
            assert_eq!(page.more, page.next.is_some());
            let Some(next) = page.next else { break };
            after = Wanted::behind(&next).expect("a place in the list");
        }
        assert_eq!(pages, [0, 1, 0]);
    }
}
