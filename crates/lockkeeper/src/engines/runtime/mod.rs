//! The runtime shared by all engines on other vendors' servers. A recipe implements what is specific to its server. The rest is
//! here: validation, request IDs, the local queue, dropped futures, the confirmation after a wait, deadlines, jeopardy,
//! events, background releases and closing.
//!
//! There are two kinds of recipes:
//!
//! | kind | lifetime of a grant | recipes |
//! |---|---|---|
//! | [`leases`] | its own lease, renewed separately | Redis, Redlock, PostgreSQL |
//! | [`sessions`] | a session shared with other grants | etcd, ZooKeeper, Consul |
//!
//! ```text
//! Keeper --> ServerEngine (engine.rs: the operations of an engine, the same for both kinds)
//!               |-- Runtime: request IDs, local queue, background tasks, events, closed or not
//!               `-- Leases<R> or Sessions<R>: grants and their renewal
//!                      `-- R: Server + Recipe (what this server does)
//! ```

mod attempt;
mod background;
#[cfg(feature = "_sessions")]
mod claim;
mod engine;
#[cfg(feature = "_leases")]
pub(crate) mod leases;
mod local_queue;
#[cfg(feature = "_sessions")]
mod names;
mod recipe;
mod requests;
#[cfg(feature = "_sessions")]
pub(crate) mod sessions;
mod validate;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{broadcast, watch};

pub(crate) use self::background::BackgroundTasks;
#[cfg(feature = "_sessions")]
pub(crate) use self::claim::{Claim, PageBuilder, QueueEntry, lock_state};
pub(crate) use self::local_queue::LocalQueues;
#[cfg(feature = "_sessions")]
pub(crate) use self::names::{escape, unescape, wall_clock};
use self::recipe::NoAnswer;
pub(crate) use self::recipe::{Failure, Server};
use self::requests::Requests;
use crate::error::Error;
use crate::events::{EVENTS_KEPT, Event, Events};
use crate::options::Options;

/// The state of a keeper that does not depend on its recipe.
pub(crate) struct Runtime {
    options: Options,
    requests: Requests,
    /// Keeps the order of the keeper's acquires.
    queues: LocalQueues,
    background: BackgroundTasks,
    numbers: AtomicU64,
    connected: AtomicBool,
    /// `None` once closed, which ends the subscriptions.
    events: Mutex<Option<broadcast::Sender<Event>>>,
    closed: watch::Sender<bool>,
}

impl Runtime {
    /// Must be called on the tokio runtime on which the keeper connects: background tasks run there.
    fn new(options: &Options) -> Runtime {
        Runtime {
            options: options.clone(),
            requests: Requests::default(),
            queues: LocalQueues::default(),
            background: BackgroundTasks::new(Handle::current()),
            numbers: AtomicU64::new(1),
            connected: AtomicBool::new(true),
            events: Mutex::new(Some(broadcast::Sender::new(EVENTS_KEPT))),
            closed: watch::Sender::new(false),
        }
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn emit(&self, event: Event) {
        if let Some(events) = &*locked(&self.events) {
            // An error means that there are no subscribers.
            let _ = events.send(event);
        }
    }

    fn events(&self) -> Events {
        match &*locked(&self.events) {
            Some(events) => Events::new(events.subscribe()),
            // A channel without a sender tells the reader that the keeper is closed.
            None => Events::new(broadcast::channel(1).1),
        }
    }

    fn end_events(&self) {
        *locked(&self.events) = None;
    }

    /// Records that the server answered.
    fn note_connected(&self, address: impl FnOnce() -> String) {
        if !self.connected.load(Ordering::Acquire) && !self.connected.swap(true, Ordering::AcqRel) {
            self.emit(Event::Connected { address: address().into() });
        }
    }

    /// Records that the server did not answer.
    fn note_disconnected(&self, why: &NoAnswer) {
        if self.connected.swap(false, Ordering::AcqRel) {
            self.emit(Event::Disconnected { why: smol_str::format_smolstr!("{why}") });
        }
    }

    fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Marks the keeper as closed; false if it was before.
    fn close(&self) -> bool {
        !self.closed.send_replace(true)
    }

    /// Resolves when the keeper is closed.
    async fn until_closed(&self) {
        let mut closed = self.closed.subscribe();
        // The sender is in `self`, so it cannot be dropped.
        let _ = closed.wait_for(|closed| *closed).await;
    }
}

/// Locks a mutex and ignores poison: every change under these mutexes is a single step.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `BYTES` random bytes in hexadecimal: unique and unguessable.
pub(crate) fn random_hex<const BYTES: usize>() -> Result<String, Error> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut bytes = [0u8; BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::Fatal(format!("the system provides no random numbers: {error}").into()))?;
    let mut text = String::with_capacity(2 * BYTES);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    Ok(text)
}
