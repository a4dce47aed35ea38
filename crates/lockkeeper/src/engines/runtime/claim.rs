//! Entries of shared queues: the claim of an entry, and the view of a queue. Admission follows the rule of the lock table,
//! [`lockkeeper_core::admission`].

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lockkeeper_core::admission::{self, Demand, UNCOUNTED};

use super::Failure;
use super::validate;
use crate::engines::AcquireRequest;
use crate::mode::Mode;
use crate::view::{Holder, LockPage, LockState, Waiter};

/// The claim of an entry, encoded in its name, so that a list of names is enough to decide admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) mode: Mode,
    pub(crate) demand: Demand,
}

impl Claim {
    pub(crate) const EXCLUSIVE: Claim = Claim { mode: Mode::Exclusive, demand: Demand::EXCLUSIVE };

    /// The claim of a validated request.
    pub(crate) fn of(request: &AcquireRequest) -> Claim {
        let demand = validate::demand(request).unwrap_or(Demand::EXCLUSIVE);
        Claim { mode: request.mode, demand }
    }

    /// Whether it is admitted only without earlier entries.
    pub(crate) fn is_exclusive(self) -> bool {
        self.demand.is_whole()
    }

    pub(crate) fn is_counted(self) -> bool {
        self.demand.is_counted()
    }

    /// Whether an entry behind these earlier ones holds the lock.
    pub(crate) fn is_admitted_behind(
        self,
        earlier: impl IntoIterator<Item = Claim>,
    ) -> Result<bool, Failure> {
        let earlier = earlier.into_iter().map(|claim| claim.demand);
        self.demand
            .is_admitted_behind(earlier)
            .map_err(|refusal| Failure::Refused(validate::refused(refusal)))
    }

    fn permits_shown(self) -> u32 {
        if self.is_counted() { self.demand.units } else { 1 }
    }
}

/// `x`, `s`, or `c<capacity>.<permits>` followed by the mode.
impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Exclusive => 'x',
            Mode::Shared => 's',
        };
        if self.is_counted() {
            write!(f, "c{}.{}{mode}", self.demand.capacity, self.demand.units)
        } else {
            write!(f, "{mode}")
        }
    }
}

impl FromStr for Claim {
    type Err = ();

    fn from_str(text: &str) -> Result<Claim, ()> {
        let mode = match text.chars().last() {
            Some('x') => Mode::Exclusive,
            Some('s') => Mode::Shared,
            _ => return Err(()),
        };
        match (text, mode) {
            ("x", _) => Ok(Claim::EXCLUSIVE),
            ("s", _) => Ok(Claim { mode, demand: Demand { units: 1, capacity: UNCOUNTED } }),
            (counted, _) => {
                let numbers = counted.strip_prefix('c').ok_or(())?;
                let (capacity, units) = numbers[..numbers.len() - 1].split_once('.').ok_or(())?;
                let (capacity, units) = (capacity.parse().map_err(|_| ())?, units.parse().map_err(|_| ())?);
                Ok(Claim { mode, demand: Demand { units, capacity } })
            }
        }
    }
}

/// An entry of a queue, as stored on the server.
#[derive(Debug, Clone)]
pub(crate) struct QueueEntry {
    pub(crate) session: String,
    pub(crate) owner: String,
    pub(crate) claim: Claim,
    pub(crate) token: u64,
    pub(crate) since: Duration,
}

/// The view of a lock, from its entries in order.
pub(crate) fn lock_state(lock: &str, queue: &[QueueEntry]) -> LockState {
    let (holders, waiters) = queue.split_at(admission::holders(queue.iter().map(|entry| entry.claim.demand)));
    LockState {
        lock: lock.to_owned(),
        capacity: queue.first().map_or(1, |first| admission::displayed(first.claim.demand.capacity)),
        last_token: holders.iter().map(|entry| entry.token).max().unwrap_or(0),
        holders: holders.iter().map(holder).collect(),
        queue: (1..).zip(waiters).map(|(position, entry)| waiter(position, entry)).collect(),
        waiting: u32::try_from(waiters.len()).unwrap_or(u32::MAX),
        closed: Duration::ZERO,
    }
}

fn holder(entry: &QueueEntry) -> Holder {
    Holder {
        session: entry.session.clone(),
        token: entry.token,
        mode: entry.claim.mode,
        owner: entry.owner.clone(),
        held: entry.since,
        permits: entry.claim.permits_shown(),
        ..Holder::default()
    }
}

fn waiter(position: u32, entry: &QueueEntry) -> Waiter {
    Waiter {
        session: entry.session.clone(),
        position,
        mode: entry.claim.mode,
        owner: entry.owner.clone(),
        waited: entry.since,
        ..Waiter::default()
    }
}

/// Builds one page of the locks in use.
pub(crate) struct PageBuilder {
    names: std::vec::IntoIter<String>,
    limit: usize,
    page: LockPage,
}

impl PageBuilder {
    /// `names` may contain names without the prefix.
    pub(crate) fn new(mut names: Vec<String>, prefix: &str, limit: usize, after: &str) -> PageBuilder {
        names.retain(|name| name.as_str() > after && name.starts_with(prefix));
        names.sort_unstable();
        PageBuilder { names: names.into_iter(), limit, page: LockPage::default() }
    }

    /// The next lock whose queue is needed.
    pub(crate) fn next_name(&mut self) -> Option<String> {
        let name = self.names.next()?;
        if self.page.locks.len() == self.limit {
            self.page.more = true;
            return None;
        }
        Some(name)
    }

    /// Adds a lock, unless its queue is empty.
    pub(crate) fn add(&mut self, name: &str, queue: &[QueueEntry]) {
        if !queue.is_empty() {
            self.page.locks.push(lock_state(name, queue));
        }
    }

    pub(crate) fn finish(self) -> LockPage {
        self.page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: Claim = Claim { mode: Mode::Shared, demand: Demand { units: 1, capacity: UNCOUNTED } };
    const TWO_OF_THREE: Claim = Claim { mode: Mode::Exclusive, demand: Demand { units: 2, capacity: 3 } };

    #[test]
    fn claim_round_trips_through_the_name_of_an_entry() {
        for claim in [Claim::EXCLUSIVE, SHARED, TWO_OF_THREE] {
            assert_eq!(claim.to_string().parse(), Ok(claim), "{claim}");
        }
        for text in ["", "y", "c", "cx", "c3x", "c3.x", "c.2x", "ä"] {
            assert_eq!(text.parse::<Claim>(), Err(()), "{text}");
        }
    }

    #[test]
    fn different_capacity_is_refused() {
        let refused = SHARED.is_admitted_behind([TWO_OF_THREE]).unwrap_err();
        assert!(matches!(refused, Failure::Refused(error) if error.code() == "invalid"));
    }

    #[test]
    fn queue_is_split_into_holders_and_waiters() {
        let entry = |claim, token| QueueEntry {
            session: "s".to_owned(),
            owner: "o".to_owned(),
            claim,
            token,
            since: Duration::ZERO,
        };
        let queue = [entry(SHARED, 3), entry(SHARED, 5), entry(Claim::EXCLUSIVE, 7), entry(SHARED, 9)];
        let state = lock_state("a", &queue);
        assert_eq!((state.holders.len(), state.waiting, state.last_token), (2, 2, 5));
        assert_eq!((state.queue[0].position, state.queue[0].mode), (1, Mode::Exclusive));
    }
}
