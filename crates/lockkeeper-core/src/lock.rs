//! A lock: its capacity and its holders, and the rule of admission.

use std::sync::Arc;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use crate::admission::{self, Demand, UNCOUNTED};
use crate::command::{Acquire, Locks, Mode};
use crate::id::{CellTime, RequestId, SessionId, Token};
use crate::refusal::Refusal;
use crate::scope::OptionalAttributes;

/// A lock that is held, waited for or closed, or was so recently.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lock {
    pub(crate) capacity: u32,
    // Invariant: the sum of the units of its holders, never above `capacity`.
    pub(crate) used: u32,
    /// Highest token granted for this name, or set by a force-release.
    pub(crate) last_token: Token,
    pub(crate) holders: Holders,
    // Invariant: the number of its keys in `LockTable::queues`.
    pub(crate) waiting: u32,
    /// End of the lock-delay after a holder's session expired (S9). The timer resets it to zero.
    pub(crate) closed_until: CellTime,
    // Invariant: its key in `LockTable::free` while the lock is neither held, waited for nor closed.
    pub(crate) freed: Option<u64>,
}

impl Lock {
    pub(crate) fn new(last_token: Token) -> Lock {
        Lock {
            capacity: UNCOUNTED,
            used: 0,
            last_token,
            holders: Holders::None,
            waiting: 0,
            closed_until: CellTime::default(),
            freed: None,
        }
    }

    /// Whether it is neither held, waited for nor closed. Then its capacity is forgotten.
    pub(crate) fn is_free(&self) -> bool {
        self.waiting == 0 && matches!(self.holders, Holders::None) && self.closed_until == CellTime::default()
    }

    /// If the lock has become free: forgets its capacity and marks it as free with this number.
    pub(crate) fn forget_if_free(&mut self, number: u64) -> bool {
        let is_free = self.is_free();
        if is_free {
            self.capacity = UNCOUNTED;
            self.freed = Some(number);
        }
        is_free
    }

    /// The rule of admission (S7), the same for exclusive, shared and counted locks. The caller checks the order of the
    /// queue.
    pub(crate) fn admits(&self, units: u32) -> bool {
        self.admits_in_exchange(units, 0)
    }

    /// Whether a request for `units` would be admitted once a holder has released `released` units.
    pub(crate) fn admits_in_exchange(&self, units: u32, released: u32) -> bool {
        let used = u64::from(self.used - released);
        self.closed_until == CellTime::default() && admission::admits(self.capacity, used, units)
    }

    /// The capacity to display.
    pub(crate) fn displayed_capacity(&self) -> u32 {
        admission::displayed(self.capacity)
    }

    /// The demand of a request on this lock.
    pub(crate) fn demand(&self, request: &Acquire) -> Result<Demand, Refusal> {
        let in_use = (!self.is_free()).then_some(self.capacity);
        Demand::of(request.mode, request.permits, request.capacity, in_use)
    }
}

/// The holders of a lock. Nearly always one, which needs no allocation.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) enum Holders {
    #[default]
    None,
    One(Token, SessionId),
    // Invariant: two or more.
    Many(OrdMap<Token, SessionId>),
}

impl Holders {
    pub(crate) fn add(&mut self, token: Token, session: SessionId) {
        match std::mem::take(self) {
            Holders::None => *self = Holders::One(token, session),
            Holders::One(first, its) => {
                *self = Holders::Many(OrdMap::from_iter([(first, its), (token, session)]));
            }
            Holders::Many(mut many) => {
                many.insert(token, session);
                *self = Holders::Many(many);
            }
        }
    }

    pub(crate) fn remove(&mut self, token: Token) {
        match std::mem::take(self) {
            Holders::None => {}
            Holders::One(held, session) if held != token => *self = Holders::One(held, session),
            Holders::One(..) => {}
            Holders::Many(mut many) => {
                many.remove(&token);
                *self = match (many.len(), many.get_min()) {
                    (1, Some(&(token, session))) => Holders::One(token, session),
                    _ => Holders::Many(many),
                };
            }
        }
    }

    pub(crate) fn contains(&self, token: Token) -> bool {
        match self {
            Holders::None => false,
            Holders::One(held, _) => *held == token,
            Holders::Many(many) => many.contains_key(&token),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Holders::None => 0,
            Holders::One(..) => 1,
            Holders::Many(many) => many.len(),
        }
    }

    /// The holders in the order of their tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Token, SessionId)> + '_ {
        let (one, many) = match self {
            Holders::None => (None, None),
            Holders::One(token, session) => (Some((*token, *session)), None),
            Holders::Many(many) => (None, Some(many.iter().map(|(token, session)| (*token, *session)))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// A grant that is held, or what is left of it after some of its locks were released.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) locks: Locks,
    pub(crate) mode: Mode,
    /// Units taken of each lock.
    pub(crate) units: u32,
    pub(crate) since: CellTime,
    pub(crate) lock_delay_ms: u64,
    pub(crate) request: Option<RequestId>,
    pub(crate) extra: Option<Arc<OptionalAttributes>>,
}
