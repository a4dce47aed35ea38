//! What happens to a keeper behind the callers' backs.

use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::broadcast;

/// Something happened to the keeper's connection, a session or a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// There is a connection.
    Connected {
        /// Where to.
        address: SmolStr,
    },
    /// The connection is gone; the keeper looks for another by itself.
    Disconnected {
        /// What went wrong.
        why: SmolStr,
    },
    /// A session's deadline has passed without a renewal, or it is suspended: its guards are in jeopardy.
    Jeopardy {
        /// The session.
        session: SmolStr,
        /// Its time to live.
        ttl: Duration,
    },
    /// A session in jeopardy was renewed after all: its guards are held again.
    Recovered {
        /// The session.
        session: SmolStr,
    },
    /// A session has ended and all its guards are lost.
    SessionLost {
        /// The session.
        session: SmolStr,
    },
    /// One guard was lost while its session lives on.
    GrantLost {
        /// The lock.
        lock: SmolStr,
        /// The token, which is now stale.
        token: u64,
        /// Why, in the engine's words, such as "forced".
        why: SmolStr,
    },
    /// The reader was too slow: so many events were dropped.
    Missed(u64),
}

/// How many events wait for a slow reader before the oldest are dropped.
pub(crate) const EVENTS_KEPT: usize = 256;

/// The events of a keeper, from the moment that [`Keeper::events`](crate::Keeper::events) was called.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Event>,
}

impl Events {
    pub(crate) fn new(receiver: broadcast::Receiver<Event>) -> Events {
        Events { receiver }
    }

    /// The next event; `None` once the keeper is closed.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: an event that was not returned will be returned by the next call.
    pub async fn next(&mut self) -> Option<Event> {
        match self.receiver.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(count)) => Some(Event::Missed(count)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
