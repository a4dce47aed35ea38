//! The leader's term of service: the clock that stamps entries, and the right to answer without a quorum read.
//!
//! A leader starts serving when a barrier entry that it proposed is applied, and with it everything that was in the log
//! before: entries of its predecessors and of its own earlier tenures. From then on cell time is the time of the last entry
//! plus the elapsed time of its monotonic clock (S2). It answers only while it serves (S3).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::CellTime;
use tokio::time::Instant;

use crate::failure::Failure;

/// One uninterrupted period in which this process serves as the leader. A leader that loses its quorum stops serving and may
/// start again in the same Raft term. That is another tenure, and decisions of the old one must not be proposed in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure(u64);

/// State of this node's leadership.
#[derive(Debug, Default)]
pub struct LeaderTerm {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    term: Option<Term>,
    leader: Option<String>,
    /// New requests are refused, and those in flight are still answered, before this node stops serving.
    closing: bool,
    /// Before this time the node does not start serving: it is transferring its leadership.
    yields_until: Option<Instant>,
    /// Number of tenures of this process.
    tenures: u64,
}

#[derive(Debug, Clone, Copy)]
struct Term {
    number: u64,
    tenure: Tenure,
    began_at: CellTime,
    began: Instant,
}

impl LeaderTerm {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts serving at the cell time of the last entry. Returns false while the leadership is being transferred.
    pub fn begin(&self, number: u64, began_at: CellTime) -> bool {
        let mut inner = self.inner();
        let began = Instant::now();
        if inner.yields_until.is_some_and(|until| began < until) {
            return false;
        }
        inner.tenures += 1;
        inner.term = Some(Term { number, tenure: Tenure(inner.tenures), began_at, began });
        inner.closing = false;
        true
    }

    /// Does not start serving for this time. Renewals acknowledged under the lease stay valid: the next leader gives every
    /// session a full TTL.
    pub fn yield_for(&self, time: Duration) {
        self.inner().yields_until = Some(Instant::now() + time);
    }

    /// Refuses new requests from now on. Requests in flight are still answered.
    pub fn close(&self) {
        self.inner().closing = true;
    }

    /// Stops serving. `leader` is the address of the new leader, if it is known.
    pub fn end(&self, leader: Option<String>) {
        let mut inner = self.inner();
        inner.term = None;
        inner.closing = false;
        inner.leader = leader;
    }

    /// Returns the Raft term in which this node serves as the leader.
    pub fn term(&self) -> Option<u64> {
        self.inner().term.map(|term| term.number)
    }

    /// Returns the current tenure, even while it is closing.
    pub fn tenure(&self) -> Option<Tenure> {
        self.inner().term.map(|term| term.tenure)
    }

    /// Returns the current cell time. Fails with the leader's address on another node.
    pub fn now(&self) -> Result<CellTime, Failure> {
        self.stamp().map(|(now, _)| now)
    }

    /// Returns the current cell time and the tenure in which it was read. Fails like [`LeaderTerm::now`].
    pub fn stamp(&self) -> Result<(CellTime, Tenure), Failure> {
        let term = self.inner().open_term()?;
        let now = CellTime(term.began_at.0.saturating_add(term.began.elapsed().as_micros() as u64));
        Ok((now, term.tenure))
    }

    /// Checks whether this node accepts requests. Fails like [`LeaderTerm::now`], but reads no clock.
    pub fn is_open(&self) -> Result<(), Failure> {
        self.inner().open_term().map(drop)
    }
}

impl Inner {
    fn open_term(&self) -> Result<Term, Failure> {
        match self.term {
            Some(_) if self.closing => Err(Failure::no_leader()),
            Some(term) => Ok(term),
            None => Err(match &self.leader {
                Some(leader) => Failure::NotLeader { leader: Some(leader.clone()) },
                None => Failure::no_leader(),
            }),
        }
    }
}
