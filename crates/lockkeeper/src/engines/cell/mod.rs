//! Locks in a cell: the client of 1, 3 or 5 nodes of `lockkeeper serve`.
//!
//! # The recipe
//!
//! The lock table is replicated by Raft; an answered command is on the disks of a majority. A keeper has one session for each
//! time to live, renewed at a third of it on one connection to the leader; renewals are not written to the log. An acquire is
//! an idempotent command with a request ID: however often it is sent, after a lost answer or a fail-over, it gets one place
//! in the queue and one grant, and the answer is remembered until it is acknowledged. Waiters are in the FIFO queue of the
//! lock table, over all clients, and the next one is notified without polling. A release names the token.
//!
//! ```text
//! callers --requests--> connection (one task) --frames--> node
//!         <--replies---                       <--frames--
//!    guard dropped, future dropped: background releases, which never block
//! ```
//!
//! # The token
//!
//! One counter for the whole lock table, incremented by each grant, in the replicated state and in snapshots. It keeps
//! increasing across restarts, fail-overs and membership changes; a restore from a backup continues above all earlier tokens.
//!
//! # Whose clock decides
//!
//! Cell time: the leader stamps entries with a monotonic time that continues from its predecessor's. It never goes back, no
//! wall clock is involved, and it does not advance without a leader, so no lease expires in the cell during an outage. The
//! guard uses its own clock, counted from when the renewal was sent, less 1 % + 2 ms: it ends first.
//!
//! # What it does NOT promise
//!
//! That a holder paused for longer than its lease notices the loss before it writes. Its guard reports the loss at the first
//! check after the pause and `run` takes no further step, but a write in flight still arrives. Pass
//! [`Guard::token`](crate::Guard::token) to the resource, and let the resource refuse a stale one.
//!
//! ```text
//! A      acquires (token 7) | writes with 7 ... paused, or the packet is delayed ..... | arrives: refused by the gate
//! cell                      |   session of A expires, its locks are free               |
//! B                         |             acquires (token 8), writes                   |
//! ```
//!
//! - Without a majority of its nodes, a cell grants and renews nothing: guards end at their deadlines.
//! - A guard can be lost although its session still exists in the cell: its own clock cannot know that cell time did not
//!   advance.

mod answer;
mod connection;
#[cfg(feature = "cell")]
mod direct;
mod history;
mod intake;
mod leader_check;
mod lock;
#[cfg(feature = "cell")]
mod network;
mod route;
mod session;
#[cfg(test)]
mod tests;
mod token;
pub(crate) mod transport;
mod upkeep;
mod wait;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_api::history::LockHistory;
use lockkeeper_api::v1;
use lockkeeper_api::v1::answer::Kind as AnswerKind;
use lockkeeper_api::v1::operation::Kind as OperationKind;
use lockkeeper_core::Token;
use smol_str::format_smolstr;
use tokio::sync::{broadcast, mpsc, oneshot};

use self::connection::Connection;
use self::transport::{Link, LinkError, Transport};
use self::work::Request;
use crate::backoff;
use crate::capabilities::{Capabilities, Class, ClockAuthority, Fairness, Finding, LossDetection, TokenKind};
use crate::clock::Moment;
use crate::election::Leader;
use crate::engines::{AcquireRequest, Answer, Engine, Fence};
use crate::error::Error;
use crate::events::{EVENTS_KEPT, Events};
use crate::grant::Grant;
use crate::history::{Audit, Blocked, LockEvent, Top};
use crate::limiter::Taken;
use crate::options::Options;
use crate::value::Value;
use crate::view::{ForcedRelease, LockPage, LockState, Status, TokenCheck};

/// A cell supports all lock semantics.
pub(crate) static CAPABILITIES: Capabilities = Capabilities {
    engine: super::CELL.name,
    prefix: super::CELL.prefixes[0],
    class: Class::Correctness,
    token: TokenKind::Durable,
    token_source: "one counter in the replicated lock table",
    clock: ClockAuthority::Quorum,
    fairness: Fairness::Fifo,
    loss: LossDetection::Pushed,
    shared: true,
    counted: true,
    several: true,
    lock_delay: true,
    who: true,
    force_release: true,
    elections: true,
    scopes: true,
    rates: true,
    values: true,
    ttl_min: Duration::from_millis(lockkeeper_core::limits::TTL_MS_MIN),
    ttl_max: Duration::from_millis(lockkeeper_core::limits::TTL_MS_MAX),
};

/// Capacity of the request channel; when it is full, callers wait.
const REQUESTS_MAX: usize = 1_024;

/// The engine: a handle on the connection.
pub(crate) struct Cell {
    capabilities: &'static Capabilities,
    requests: mpsc::Sender<Request>,
    /// Bounded: each guard and each waiting future sends at most one number.
    background_releases: mpsc::UnboundedSender<u64>,
    numbers: Arc<AtomicU64>,
    events: broadcast::WeakSender<crate::events::Event>,
    request_timeout: Duration,
    /// `None` for a lock table in this process.
    #[cfg(feature = "admin")]
    nodes: Option<crate::admin::Nodes>,
}

/// Connects to a cell on the network.
#[cfg(feature = "cell")]
pub(crate) async fn connect(hosts: Vec<String>, options: &Options) -> Result<Cell, Error> {
    let credentials = options.credentials.load()?;
    #[cfg(feature = "admin")]
    let nodes = crate::admin::Nodes::new(hosts.clone(), credentials.clone(), options.connect_timeout);
    let transport = network::Network::new(hosts, options.connect_timeout, credentials);
    let cell = start(&CAPABILITIES, Arc::new(transport), options).await?;
    #[cfg(feature = "admin")]
    let cell = Cell { nodes: Some(nodes), ..cell };
    Ok(cell)
}

/// Opens the first link, then starts the connection's task.
pub(crate) async fn start(
    capabilities: &'static Capabilities,
    transport: Arc<dyn Transport>,
    options: &Options,
) -> Result<Cell, Error> {
    let link = first_link(&*transport, options).await?;
    let (requests, incoming_requests) = mpsc::channel(REQUESTS_MAX);
    let (background_releases, incoming_releases) = mpsc::unbounded_channel();
    let numbers = Arc::new(AtomicU64::new(1));
    let events = broadcast::Sender::new(EVENTS_KEPT);
    let cell = Cell {
        capabilities,
        requests,
        background_releases,
        numbers: Arc::clone(&numbers),
        events: events.downgrade(),
        request_timeout: options.request_timeout,
        #[cfg(feature = "admin")]
        nodes: None,
    };
    let connection = Connection::new(
        transport,
        link,
        options.clone(),
        incoming_requests,
        incoming_releases,
        numbers,
        events,
    );
    tokio::spawn(connection.run());
    Ok(cell)
}

/// Tries one node after the other until one answers or the timeout expires.
async fn first_link(transport: &dyn Transport, options: &Options) -> Result<Link, Error> {
    let until = Moment::now().plus(options.connect_timeout);
    let mut leader = None;
    let mut attempt = 0;
    loop {
        let left = until.since(Moment::now());
        let failure = match tokio::time::timeout(left, transport.open(attempt, leader.take())).await {
            Ok(Ok(link)) => return Ok(link),
            Ok(Err(failure)) => failure,
            Err(_) => LinkError::new(format_smolstr!("no answer within {:?}", options.connect_timeout)),
        };
        if let Some(error) = failure.fatal {
            return Err(error);
        }
        leader = failure.leader;
        attempt += 1;
        let pause = backoff::pause_in_fail_over(attempt);
        if Moment::now().plus(pause) >= until {
            return Err(Error::unavailable(format!(
                "no cell answers at {} ({}): start one with `lockkeeper serve`, or name another with --engine",
                transport.addresses(),
                failure.why
            )));
        }
        tokio::time::sleep(pause).await;
    }
}

impl Cell {
    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request to the connection; waits while its channel is full.
    async fn send(&self, request: Request, limit: Option<Duration>) -> Result<(), Error> {
        let request = match self.requests.try_send(request) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(Error::Closed),
            Err(mpsc::error::TrySendError::Full(request)) => request,
        };
        let sending = self.requests.send(request);
        let sent = match limit {
            None => sending.await,
            Some(limit) => tokio::time::timeout(limit, sending).await.map_err(|_| {
                Error::unavailable(
                    "too many requests are queued for the connection: slow down, or check the network",
                )
            })?,
        };
        sent.map_err(|_| Error::Closed)
    }

    /// Sends an operation and waits for its answer.
    async fn call(&self, operation: OperationKind, repeatable: bool) -> Result<AnswerKind, Error> {
        let (reply, answer) = oneshot::channel();
        let number = self.next_number();
        self.send(
            Request::Call { number, operation: Box::new(operation), repeatable, reply },
            Some(self.request_timeout),
        )
        .await?;
        answer.await.unwrap_or(Err(Error::Closed))
    }
}

/// Extracts the expected kind of answer.
macro_rules! pick {
    ($answer:expr, $kind:ident) => {
        match $answer {
            AnswerKind::$kind(answer) => Ok(answer),
            _ => Err(answer::unexpected_answer()),
        }
    };
}
use pick;

impl Engine for Cell {
    fn name(&self) -> &'static str {
        self.capabilities.engine
    }

    fn capabilities(&self) -> &'static Capabilities {
        self.capabilities
    }

    #[cfg(feature = "admin")]
    fn nodes(&self) -> Option<&crate::admin::Nodes> {
        self.nodes.as_ref()
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<'_, Arc<Grant>> {
        Box::pin(self.acquire_lock(request))
    }

    fn release<'a>(&'a self, grant: &'a Grant) -> Answer<'a, ()> {
        Box::pin(self.release_lock(grant))
    }

    fn release_in_background(&self, grant: &Grant) {
        // An error means that the connection has ended, and with it the session.
        let _ = self.background_releases.send(grant.number);
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            // Closing a closed keeper is not an error.
            if self.send(Request::Close { reply }, Some(self.request_timeout)).await.is_ok() {
                let _ = answer.await;
            }
            Ok(())
        })
    }

    fn events(&self) -> Events {
        let receiver = match self.events.upgrade() {
            Some(events) => events.subscribe(),
            // The connection has ended: a channel without a sender tells the reader.
            None => broadcast::channel(1).1,
        };
        Events::new(receiver)
    }

    fn session_ids(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            self.send(Request::SessionIds { reply }, Some(self.request_timeout)).await?;
            answer.await.map_err(|_| Error::Closed)
        })
    }

    fn who<'a>(&'a self, lock: &'a str) -> Answer<'a, LockState> {
        Box::pin(async move {
            let operation = OperationKind::GetLock(v1::GetLockRequest { lock: lock.to_owned() });
            pick!(self.call(operation, true).await?, Lock).map(Into::into)
        })
    }

    fn locks<'a>(&'a self, prefix: &'a str, limit: u32, after: &'a str) -> Answer<'a, LockPage> {
        Box::pin(async move {
            let operation = OperationKind::ListLocks(v1::ListLocksRequest {
                prefix: prefix.to_owned(),
                limit,
                after: after.to_owned(),
            });
            pick!(self.call(operation, true).await?, Locks).map(Into::into)
        })
    }

    fn check_token<'a>(&'a self, lock: &'a str, token: Token) -> Answer<'a, TokenCheck> {
        Box::pin(self.check(lock.to_owned(), token.0, String::new()))
    }

    fn check_sequencer<'a>(&'a self, sequencer: &'a str) -> Answer<'a, TokenCheck> {
        Box::pin(self.check(String::new(), 0, sequencer.to_owned()))
    }

    fn force_release<'a>(&'a self, lock: &'a str, reason: &'a str) -> Answer<'a, ForcedRelease> {
        Box::pin(async move {
            let operation = OperationKind::ForceRelease(v1::ForceReleaseRequest {
                lock: lock.to_owned(),
                reason: reason.to_owned(),
            });
            pick!(self.call(operation, false).await?, ForceRelease)
                .map(|answer| ForcedRelease { holders: answer.released, last_token: answer.last_token })
        })
    }

    fn status(&self) -> Answer<'_, Status> {
        Box::pin(async move {
            pick!(self.call(OperationKind::Status(v1::StatusRequest {}), true).await?, Status).map(Into::into)
        })
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(async move { Ok(answer::findings(&self.status().await?)) })
    }

    fn history<'a>(&'a self, lock: &'a str, limit: u32) -> Answer<'a, Vec<LockEvent>> {
        Box::pin(async move {
            let operation = OperationKind::GetHistory(v1::GetHistoryRequest { lock: lock.to_owned(), limit });
            pick!(self.call(operation, true).await?, History).map(|found| LockHistory::from(found).events)
        })
    }

    fn audit(&self, limit: u32) -> Answer<'_, Audit> {
        Box::pin(async move {
            let operation = OperationKind::GetAudit(v1::GetAuditRequest { limit });
            pick!(self.call(operation, true).await?, Audit).map(Into::into)
        })
    }

    fn top(&self, limit: u32) -> Answer<'_, Top> {
        Box::pin(async move {
            let operation = OperationKind::GetTop(v1::GetTopRequest { limit });
            pick!(self.call(operation, true).await?, Top).map(Into::into)
        })
    }

    fn blocked<'a>(&'a self, lock: &'a str) -> Answer<'a, Vec<Blocked>> {
        Box::pin(async move {
            let operation = OperationKind::GetWaitGraph(v1::GetWaitGraphRequest { lock: lock.to_owned() });
            pick!(self.call(operation, true).await?, WaitGraph).map(|graph| history::blocked(graph.into()))
        })
    }

    fn leader<'a>(&'a self, election: &'a str, known: Option<u64>) -> Answer<'a, Option<Leader>> {
        Box::pin(async move {
            let operation = OperationKind::ObserveElection(v1::ObserveElectionRequest {
                election: election.to_owned(),
                known_epoch: known,
                // The answer arrives before the request timeout.
                wait_ms: (self.request_timeout / 2).as_millis() as u64,
            });
            pick!(self.call(operation, true).await?, Election).map(|state| state.leader.map(Leader::from))
        })
    }

    fn hand_over<'a>(
        &'a self,
        election: &'a str,
        session: &'a str,
        epoch: Token,
        to: &'a str,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let operation = OperationKind::HandOver(v1::HandOverRequest {
                session: session.to_owned(),
                election: election.to_owned(),
                epoch: epoch.0,
                to: to.to_owned(),
            });
            pick!(self.call(operation, false).await?, Done).map(|_| ())
        })
    }

    fn take_rate<'a>(
        &'a self,
        limiter: &'a str,
        permits: u64,
        rate_per_s: f64,
        burst: u64,
    ) -> Answer<'a, Taken> {
        Box::pin(async move {
            let operation = OperationKind::TakeRate(v1::TakeRateRequest {
                limiter: limiter.to_owned(),
                permits,
                rate_per_s,
                burst,
            });
            pick!(self.call(operation, true).await?, TakeRate).map(|taken| match taken.allowed {
                true => Ok(()),
                false => Err(Duration::from_millis(taken.retry_after_ms)),
            })
        })
    }

    fn get_value<'a>(&'a self, key: &'a str) -> Answer<'a, Option<Value>> {
        Box::pin(async move {
            let operation = OperationKind::GetValue(v1::GetValueRequest { key: key.to_owned() });
            pick!(self.call(operation, true).await?, Value).map(answer::value)
        })
    }

    fn put_value<'a>(
        &'a self,
        key: &'a str,
        value: Vec<u8>,
        fence: Option<Fence>,
        if_version: Option<u64>,
    ) -> Answer<'a, u64> {
        Box::pin(async move {
            let fence = fence.map(token::to_wire);
            let operation = OperationKind::PutValue(v1::PutValueRequest {
                key: key.to_owned(),
                value,
                fence,
                if_version,
            });
            pick!(self.call(operation, false).await?, PutValue).map(|answer| answer.version)
        })
    }

    fn delete_value<'a>(
        &'a self,
        key: &'a str,
        fence: Option<Fence>,
        if_version: Option<u64>,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let fence = fence.map(token::to_wire);
            let operation =
                OperationKind::DeleteValue(v1::DeleteValueRequest { key: key.to_owned(), fence, if_version });
            pick!(self.call(operation, false).await?, Done).map(|_| ())
        })
    }
}
