//! Limits how many console pages watch this node, in total and for each identity, so that one identity cannot use up all
//! seats.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smol_str::SmolStr;

/// Most pages that watch one node.
const SEATS_MAX: usize = 256;
/// Most pages of one identity. Without authentication there are no identities.
const SEATS_PER_IDENTITY_MAX: usize = 64;

/// The seats of a node.
#[derive(Debug, Default)]
pub struct ConsoleSeats {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    taken: usize,
    by_identity: HashMap<SmolStr, usize>,
}

/// A taken seat. Dropping it frees it.
#[derive(Debug)]
pub struct ConsoleSeat {
    seats: Arc<ConsoleSeats>,
    identity: Option<SmolStr>,
}

impl ConsoleSeats {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a seat, if one is left for this identity.
    pub fn take(self: &Arc<Self>, identity: Option<SmolStr>) -> Option<ConsoleSeat> {
        let mut inner = self.inner();
        let own =
            identity.as_ref().and_then(|identity| inner.by_identity.get(identity)).copied().unwrap_or(0);
        if inner.taken >= SEATS_MAX || own >= SEATS_PER_IDENTITY_MAX {
            return None;
        }
        inner.taken += 1;
        if let Some(identity) = &identity {
            *inner.by_identity.entry(identity.clone()).or_default() += 1;
        }
        drop(inner);
        Some(ConsoleSeat { seats: Arc::clone(self), identity })
    }

    /// Returns the number of taken seats.
    pub fn taken(&self) -> usize {
        self.inner().taken
    }
}

impl Drop for ConsoleSeat {
    fn drop(&mut self) {
        let mut inner = self.seats.inner();
        inner.taken -= 1;
        let Some(identity) = &self.identity else { return };
        if let Some(own) = inner.by_identity.get_mut(identity) {
            *own -= 1;
            if *own == 0 {
                inner.by_identity.remove(identity);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_identity_leaves_seats_for_others() {
        let seats = Arc::new(ConsoleSeats::default());
        let greedy: Vec<_> = (0..SEATS_MAX).map_while(|_| seats.take(Some("greedy".into()))).collect();
        assert_eq!(greedy.len(), SEATS_PER_IDENTITY_MAX);
        let other = seats.take(Some("other".into())).expect("a seat");
        drop(greedy);
        assert_eq!(seats.taken(), 1);
        drop(other);
        assert!(seats.inner().by_identity.is_empty());
        let open: Vec<_> = (0..SEATS_MAX + 1).map_while(|_| seats.take(None)).collect();
        assert_eq!(open.len(), SEATS_MAX);
    }
}
