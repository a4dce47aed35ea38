//! The time in office of a leader: the clock that stamps entries, and the right to answer without asking.
//!
//! A leader takes office when an entry that it proposed for this purpose is applied (a barrier), and with it everything
//! that was in the log before: entries of its predecessors and of its own earlier tenures. From then on cell time is the
//! time of the last entry plus its own monotonic clock (S2), and only while in office does it answer (S3).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::CellTime;
use tokio::time::Instant;

use crate::failure::Failure;

/// One continuous time in office of this process. A leader that loses its majority leaves office and can take it again in
/// the same term: that is another tenure, and what was decided in the old one must not be proposed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure(u64);

/// Whether this node leads, and since when.
#[derive(Debug, Default)]
pub struct LeaderTerm {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    term: Option<Term>,
    leader: Option<String>,
    /// Nothing new is answered: what is under way gets its answer, and then the office is left.
    closing: bool,
    /// Until then this node does not take office: it is handing over to another one.
    yields_until: Option<Instant>,
    /// How often this node has taken office.
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

    /// Takes office at the cell time of the last entry, unless it is being handed over.
    pub fn take(&self, number: u64, began_at: CellTime) -> bool {
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

    /// Does not take office for this long. What was promised on the lease stays true: whoever leads next gives
    /// every session its full time.
    pub fn yield_for(&self, time: Duration) {
        self.inner().yields_until = Some(Instant::now() + time);
    }

    /// From now on nothing is answered that was not under way before.
    pub fn close(&self) {
        self.inner().closing = true;
    }

    /// Leaves office; `leader` is who leads now, if anybody.
    pub fn leave(&self, leader: Option<String>) {
        let mut inner = self.inner();
        inner.term = None;
        inner.closing = false;
        inner.leader = leader;
    }

    /// The term for which this node is in office.
    pub fn term(&self) -> Option<u64> {
        self.inner().term.map(|term| term.number)
    }

    /// The current tenure, also while it is closing.
    pub fn tenure(&self) -> Option<Tenure> {
        self.inner().term.map(|term| term.tenure)
    }

    /// Cell time now, or who should be asked instead.
    pub fn now(&self) -> Result<CellTime, Failure> {
        self.stamp().map(|(now, _)| now)
    }

    /// Cell time now and the tenure in which it was read, or who should be asked instead.
    pub fn stamp(&self) -> Result<(CellTime, Tenure), Failure> {
        let term = self.inner().open_term()?;
        let now = CellTime(term.began_at.0.saturating_add(term.began.elapsed().as_micros() as u64));
        Ok((now, term.tenure))
    }

    /// Whether this node may be asked, or who should be asked instead. Reads no clock.
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
