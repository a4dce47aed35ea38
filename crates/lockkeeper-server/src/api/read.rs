//! Reads, which the leader answers from its lock table without writing to the log.

use std::sync::MutexGuard;

use lockkeeper_api::access::AccessState;
use lockkeeper_api::election::{Election, Leader};
use lockkeeper_api::lock::{LockPage, LockState};
use lockkeeper_api::session::KeptAlive;
use lockkeeper_api::status::Members;
use lockkeeper_api::token::TokenCheck;
use lockkeeper_api::value::{GetValue, Value};
use lockkeeper_api::{Answer, Call, Request};
use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::{CellTime, LockName, LockTable, Refusal};

use super::Api;
use super::page_room::{PageRoom, page};
use crate::failure::Failure;
use crate::leader::expiry::Expiry;
use crate::metrics::hourly_stats::HourlyStats;

/// Locks in a page if the request has no limit.
const PAGE_DEFAULT: usize = 100;
/// Most locks in a page.
const PAGE_MAX: usize = 1_000;
/// Holders and waiters shown of one lock.
const SHOWN_OF_ONE_MAX: usize = 1_000;
/// Holders and waiters shown of each lock in a list.
const SHOWN_IN_LIST_MAX: usize = 10;

/// The lock table at one moment of cell time.
pub struct View<'a> {
    /// The table.
    pub table: MutexGuard<'a, LockTable>,
    /// That moment. Durations are measured up to it.
    pub now: CellTime,
}

impl Api {
    /// Answers a read that is already admitted.
    pub(crate) fn read(&self, request: Request) -> Result<Answer, Failure> {
        match request {
            Request::KeepAlive(session) => {
                let ttl_ms = self.renew(session)?.ok_or(Refusal::SessionLost)?;
                return Ok(Answer::KeptAlive(KeptAlive { ttl_ms }));
            }
            Request::Status => return Ok(Answer::Status(Box::new(self.status()))),
            Request::Members => return Ok(Answer::Members(Members { members: self.status().members })),
            Request::Value(key) => return Ok(Answer::Value(self.stored_value(key)?)),
            _ => {}
        }
        let shared = self.shared();
        self.view()?.read(request, &shared.expiry, &shared.hourly_stats, self.authenticator().has_root())
    }

    /// Returns the table if it is current for the whole cell, which only the leader can know.
    pub(crate) fn view(&self) -> Result<View<'_>, Failure> {
        let now = self.now()?;
        Ok(View { table: self.shared().table(), now })
    }

    /// Returns what this node has applied, whoever leads. On a follower it may be stale. Durations are measured up to the
    /// last entry, so the view does not change while no entry is applied.
    pub(crate) fn local_view(&self) -> View<'_> {
        let table = self.shared().table();
        let now = table.now();
        View { table, now }
    }

    /// Returns the state of one lock.
    pub fn lock(&self, name: &str) -> Result<LockState, Failure> {
        let request = lockkeeper_api::lock::GetLock { name: name.to_owned() };
        self.read_authorized(request.into_request()?)?.try_into().map_err(Failure::from)
    }

    /// Returns a value; version 0 means that there is none.
    pub fn value(&self, key: &str) -> Result<Value, Failure> {
        let request = GetValue { key: key.to_owned() };
        self.read_authorized(request.into_request()?)?.try_into().map_err(Failure::from)
    }

    pub(super) fn read_authorized(&self, request: Request) -> Result<Answer, Failure> {
        self.authorize(&request)?;
        self.read(request)
    }

    fn stored_value(&self, key: String) -> Result<Value, Failure> {
        if !mutation::is_on(Mutation::ReadWithoutLease) {
            self.now()?;
        }
        let table = self.shared().table();
        let stored = table.value(&key);
        Ok(Value::new(key, stored))
    }
}

impl View<'_> {
    /// Answers a read from the table. `has_root` reports whether access control is on in any case.
    pub(crate) fn read(
        &self,
        request: Request,
        expiry: &Expiry,
        hourly_stats: &HourlyStats,
        has_root: bool,
    ) -> Result<Answer, Failure> {
        Ok(match request {
            Request::Lock(name) => Answer::Lock(self.lock(&name)),
            Request::Locks { prefix, after, limit } => Answer::Locks(self.locks(&prefix, &after, limit)),
            Request::Token { lock, token } => Answer::Token(TokenCheck {
                valid: self.table.holds(&lock, token),
                last_token: self.table.last_token_of(&lock).0,
            }),
            Request::Election(lock) => Answer::Election(self.election(&lock)),
            Request::History { lock, limit } => Answer::History(self.history(&lock, limit)),
            Request::Audit { limit } => Answer::Audit(self.audit(limit)),
            Request::Top { limit } => Answer::Top(self.top(hourly_stats, limit)),
            Request::Graph(lock) => Answer::Graph(self.graph(lock.as_ref())),
            Request::Sessions(filter) => Answer::Sessions(self.sessions(expiry, &filter)),
            Request::Access => {
                let (bytes, bytes_max) = (self.table.state_bytes(), self.table.state_bytes_max());
                let access = self.table.access();
                Answer::Access(AccessState::new(access, self.now, bytes, bytes_max, has_root))
            }
            other => return Err(Failure::Unsupported(format!("{other:?} is not answered from the table"))),
        })
    }

    fn lock(&self, name: &LockName) -> LockState {
        let mut view = self.table.lock_view(name, self.now, SHOWN_OF_ONE_MAX);
        PageRoom::default().shorten(&mut view);
        view.into()
    }

    fn election(&self, lock: &LockName) -> Election {
        let leader = self.table.leader_of(lock).map(|leader| Leader {
            value: leader.value.into(),
            epoch: leader.token.0,
            owner: leader.owner.into(),
        });
        Election { leader, candidates: self.table.waiting_for(lock) }
    }

    /// Returns a page of the locks in use.
    fn locks(&self, prefix: &str, after: &str, limit: usize) -> LockPage {
        let limit = if limit == 0 { PAGE_DEFAULT } else { limit.min(PAGE_MAX) };
        let (locks, more) = page(self.table.lock_views(prefix, after, self.now, SHOWN_IN_LIST_MAX), limit);
        LockPage { locks: locks.into_iter().map(LockState::from).collect(), more }
    }
}
