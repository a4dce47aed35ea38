//! Engines with sessions: etcd, ZooKeeper, Consul.
//!
//! ```text
//! caller --request--> acquire (its own task: a dropped caller cancels it where that leaves nothing behind)
//!                        |-- session (one for each time to live; one task renews it at a third)
//!                        |-- enter the queue, wait, confirm the session, grant
//!                     held: number -> the entry that must leave the queue when the guard is dropped
//! ```

mod acquire;
mod pool;
mod recipe;
mod release;
mod renewal;

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};

use self::pool::{Session, SessionPool};
pub(crate) use self::recipe::{Entered, Opened, Recipe, Ticket, Try};
use self::release::Watcher;
use super::attempt::Attempt;
use super::engine::{Kind, ServerEngine};
use super::requests::{BackgroundRelease, RequestKey};
use super::{Runtime, locked};
use crate::error::{Error, Loss};
use crate::grant::Grant;
use crate::options::Options;

/// An engine whose grants belong to sessions.
pub(crate) type SessionEngine<R> = ServerEngine<Sessions<R>>;

/// The sessions of a keeper and their grants.
pub(crate) struct Sessions<R: Recipe> {
    runtime: Runtime,
    recipe: Arc<R>,
    pool: SessionPool<R>,
    held: Mutex<HashMap<u64, Held<R>>>,
}

/// A held grant and its entry in the server's queue.
struct Held<R: Recipe> {
    grant: Arc<Grant>,
    session: Arc<Session<R>>,
    ticket: Arc<Ticket>,
    key: Option<RequestKey>,
    /// Present only if the grant is held for longer than a renewal interval.
    watcher: Option<Watcher>,
}

/// Starts the engine. The recipe is already connected to its server.
pub(crate) fn start<R: Recipe>(recipe: R, options: &Options) -> SessionEngine<R> {
    ServerEngine::new(Arc::new(Sessions {
        runtime: Runtime::new(options),
        recipe: Arc::new(recipe),
        pool: SessionPool::default(),
        held: Mutex::default(),
    }))
}

impl<R: Recipe> BackgroundRelease for Sessions<R> {
    fn release_in_background(self: Arc<Self>, number: u64) {
        if let Some(held) = self.take(number) {
            self.leave_in_background(held.session, held.ticket);
        }
    }
}

impl<R: Recipe> Kind for Sessions<R> {
    type Server = R;

    /// A partially entered entry cannot be distinguished from none.
    const DROPPABLE: bool = false;

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn server(&self) -> &R {
        &self.recipe
    }

    fn acquire(
        self: &Arc<Self>,
        attempt: &Attempt,
    ) -> impl Future<Output = Result<Arc<Grant>, Error>> + Send {
        self.acquire_entry(attempt)
    }

    fn release(self: &Arc<Self>, grant: &Grant) -> impl Future<Output = Result<(), Error>> + Send {
        self.release_entry(grant)
    }

    fn session_ids(&self) -> Vec<String> {
        self.pool.all().iter().map(|session| session.id.clone()).collect()
    }

    /// Marks the guards as lost first, then closes the sessions.
    async fn shut_down(self: Arc<Self>) {
        let sessions = self.pool.all();
        for session in &sessions {
            session.deadline.lose(Loss::Closed);
            session.acknowledged.send_modify(|_| {});
        }
        let held: Vec<_> = locked(&self.held).drain().collect();
        drop(held);
        for session in sessions {
            // After its time to live the session has expired by itself.
            let _ = tokio::time::timeout(session.ttl, self.close_session(&session)).await;
        }
        self.recipe.close().await;
        self.runtime.end_events();
    }
}
