//! Engines with sessions of their own: etcd, ZooKeeper, Consul.
//!
//! ```text
//! caller --request--> acquire (a task of its own: a dropped caller cancels it where that leaves nothing behind)
//!                        |-- session (one for each time to live; one task renews it at a third)
//!                        |-- enter the queue, wait, confirm the session, grant
//!                     held: number -> the entry that must leave the queue when the guard goes
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
use super::requests::{GiveBack, RequestKey};
use super::{Runtime, locked};
use crate::error::{Error, Loss};
use crate::grant::Grant;
use crate::options::Options;

/// An engine whose grants live in sessions.
pub(crate) type SessionEngine<R> = ServerEngine<Sessions<R>>;

/// The sessions of a keeper, and what is held in them.
pub(crate) struct Sessions<R: Recipe> {
    runtime: Runtime,
    recipe: Arc<R>,
    pool: SessionPool<R>,
    held: Mutex<HashMap<u64, Held<R>>>,
}

/// A grant that is in the server's queue in our name.
struct Held<R: Recipe> {
    grant: Arc<Grant>,
    session: Arc<Session<R>>,
    ticket: Arc<Ticket>,
    key: Option<RequestKey>,
    /// Only while it is held for long.
    watcher: Option<Watcher>,
}

/// Starts the engine. The recipe has reached its server already.
pub(crate) fn start<R: Recipe>(recipe: R, options: &Options) -> SessionEngine<R> {
    ServerEngine::new(Arc::new(Sessions {
        runtime: Runtime::new(options),
        recipe: Arc::new(recipe),
        pool: SessionPool::default(),
        held: Mutex::default(),
    }))
}

impl<R: Recipe> GiveBack for Sessions<R> {
    fn give_back(self: Arc<Self>, number: u64) {
        if let Some(held) = self.take(number) {
            self.leave_in_background(held.session, held.ticket);
        }
    }
}

impl<R: Recipe> Kind for Sessions<R> {
    type Server = R;

    /// An entry that is halfway in the queue cannot be told from one that never was.
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

    /// Guards are lost first, then the sessions end.
    async fn shut_down(self: Arc<Self>) {
        let sessions = self.pool.all();
        for session in &sessions {
            session.deadline.lose(Loss::Closed);
            session.acknowledged.send_modify(|_| {});
        }
        let held: Vec<_> = locked(&self.held).drain().collect();
        drop(held);
        for session in sessions {
            // After its time to live it has ended by itself.
            let _ = tokio::time::timeout(session.ttl, self.close_session(&session)).await;
        }
        self.recipe.close().await;
        self.runtime.end_events();
    }
}
