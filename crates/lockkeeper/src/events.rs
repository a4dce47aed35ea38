//! Events of a keeper: connections, jeopardy, losses.

use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::broadcast;

/// Event of the keeper's connection, of a session or of a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The keeper has connected.
    Connected {
        /// The address of the server.
        address: SmolStr,
    },
    /// The connection is lost; the keeper reconnects by itself.
    Disconnected {
        /// The reason.
        why: SmolStr,
    },
    /// A session's deadline has passed without a renewal, or it is suspended: its guards are in jeopardy.
    Jeopardy {
        /// The session.
        session: SmolStr,
        /// Its time to live.
        ttl: Duration,
    },
    /// A session in jeopardy was renewed: its guards are held again.
    Recovered {
        /// The session.
        session: SmolStr,
    },
    /// A session has ended and all its guards are lost.
    SessionLost {
        /// The session.
        session: SmolStr,
    },
    /// One guard was lost while its session continues.
    GrantLost {
        /// The lock.
        lock: SmolStr,
        /// The token, which is now stale.
        token: u64,
        /// The engine's reason, such as "forced".
        why: SmolStr,
    },
    /// The reader was too slow: this many events were dropped.
    Missed(u64),
}

/// Number of events that are buffered for a slow reader before the oldest are dropped.
pub(crate) const EVENTS_KEPT: usize = 256;

/// Stream of the events of a keeper, from the call of [`Keeper::events`](crate::Keeper::events) on.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Event>,
}

impl Events {
    pub(crate) fn new(receiver: broadcast::Receiver<Event>) -> Events {
        Events { receiver }
    }

    /// Waits for the next event; `None` once the keeper is closed.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the next call returns an event that this one did not.
    pub async fn next(&mut self) -> Option<Event> {
        match self.receiver.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(count)) => Some(Event::Missed(count)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
