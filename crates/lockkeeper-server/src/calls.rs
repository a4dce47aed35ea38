//! Every operation of the contract as one call, for HTTP and unary gRPC alike; the stream uses the parts
//! that do not wait.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use lockkeeper_api::v1;
use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::{
    Acquire, CellTime, Command, Grant, LockName, LockView, Refusal, Reply, Right, Sequencer, SessionId,
    Token, Wait, Waiting,
};
use smol_str::{SmolStr, format_smolstr};
use tokio::sync::oneshot;

use crate::budget::{Budgets, ByteBudget, ConnectionBudget};
use crate::callers::Caller;
use crate::data_dir::DataDir;
use crate::doubt;
use crate::failure::{Failure, Outcome};
use crate::raft::Consensus;
use crate::raft::snapshot::SnapshotStore;
use crate::security::{Guard, Rates, Who};
use crate::session::connection::Connection;
use crate::shared::Shared;
use crate::undelivered::{AwaitedGrant, UndeliveredGrant};
use crate::wire;

/// Locks in a page, if the caller names no number.
const PAGE_DEFAULT: usize = 100;
/// Most locks in a page.
const PAGE_MAX: usize = 1_000;
/// A page ends with the lock that fills it to this size, whatever number was asked for: names, owners and values of
/// candidates may be long.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Holders and waiters shown of one lock.
const SHOWN_OF_ONE_MAX: usize = 1_000;
/// Holders and waiters shown of each lock in a list.
const SHOWN_IN_LIST_MAX: usize = 10;
/// Request ids that begin like this are the node's own.
pub(crate) const OWN_REQUEST_PREFIX: &str = "~";

/// The operations of a node. Cheap to clone.
#[derive(Clone)]
pub struct Calls {
    inner: Arc<Inner>,
    /// In whose name.
    who: Who,
}

/// The same without keeping the node alive, for what the node itself keeps.
#[derive(Clone)]
pub(crate) struct WeakCalls {
    inner: Weak<Inner>,
    who: Who,
}

impl WeakCalls {
    pub(crate) fn upgrade(&self) -> Option<Calls> {
        Some(Calls { inner: self.inner.upgrade()?, who: self.who.clone() })
    }
}

impl fmt::Debug for WeakCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakCalls").field("who", &self.who).finish_non_exhaustive()
    }
}

struct Inner {
    shared: Arc<Shared>,
    consensus: Consensus,
    home: Arc<DataDir>,
    snapshots: SnapshotStore,
    requests: AtomicU64,
    guard: Arc<Guard>,
    rates: Rates,
    budgets: Budgets,
}

impl Calls {
    pub(crate) fn new(
        shared: Arc<Shared>,
        consensus: Consensus,
        home: Arc<DataDir>,
        snapshots: SnapshotStore,
        guard: Arc<Guard>,
    ) -> Calls {
        let (requests, rates, budgets) = (AtomicU64::new(0), Rates::default(), Budgets::default());
        let inner = Arc::new(Inner { shared, consensus, home, snapshots, requests, guard, rates, budgets });
        Calls { inner, who: Who::Process }
    }

    /// The same operations in the name of somebody else.
    pub(crate) fn on_behalf_of(&self, who: Who) -> Calls {
        Calls { inner: self.inner.clone(), who }
    }

    pub(crate) fn downgrade(&self) -> WeakCalls {
        WeakCalls { inner: Arc::downgrade(&self.inner), who: self.who.clone() }
    }

    /// The same in the name of whoever has this token.
    pub(crate) fn with_token(&self, token: &str) -> Result<Calls, Failure> {
        let found = self.inner.guard.by_token(token, self.inner.shared.table().access());
        match found {
            Ok(who) => Ok(self.on_behalf_of(who)),
            // It may be so new that this node has not heard of it.
            Err(_) => {
                self.inner.shared.leader_term.now()?;
                self.inner.shared.metrics.turned_away("unauthenticated");
                Err(crate::security::admission::unknown_token())
            }
        }
    }

    pub(crate) fn who(&self) -> &Who {
        &self.who
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.inner.guard
    }

    /// What the node keeps for the caller on this connection.
    pub(crate) fn budget(&self, connection: &ConnectionBudget) -> ByteBudget {
        self.inner.budgets.of(connection, self.who.identity())
    }

    pub(crate) fn rates(&self) -> &Rates {
        &self.inner.rates
    }

    /// Queues a command, if the caller may ask for it.
    pub(crate) fn submit(&self, command: Command, caller: Caller) {
        match self.admit(command) {
            Ok(command) => self.inner.shared.submit(command, caller),
            Err(failure) => drop(caller.deliver(Err(failure))),
        }
    }

    /// Whether this node may answer for the cell from what it knows.
    pub fn may_answer(&self) -> Result<(), Failure> {
        self.now().map(|_| ())
    }

    /// Through which entry the table is here, and a checksum of it: equal on all members that are equally far.
    pub fn digest(&self) -> (u64, u32) {
        let table = self.shared().table().clone();
        let mut hasher = crc32fast::Hasher::new();
        table.snapshot().for_each(|part| hasher.update(&part));
        (table.applied(), hasher.finalize())
    }

    /// Makes the table of this node differ from those of the others. For tests.
    #[cfg(feature = "simulation")]
    pub fn make_table_different(&self) {
        self.shared().table().make_different();
    }

    pub(crate) fn consensus(&self) -> &Consensus {
        &self.inner.consensus
    }

    pub(crate) fn home(&self) -> &DataDir {
        &self.inner.home
    }

    pub(crate) fn snapshots(&self) -> &SnapshotStore {
        &self.inner.snapshots
    }

    /// Cell time, if this node may answer from what it knows: it leads, and a majority has confirmed it so lately
    /// that nobody else can (S3). Otherwise it might answer with what another leader has long changed.
    pub(crate) fn now(&self) -> Result<CellTime, Failure> {
        let now = self.inner.shared.leader_term.now()?;
        match self.inner.consensus.lease().is_valid() {
            true => Ok(now),
            false => Err(Failure::no_majority()),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// Sends a command through the log and waits for its answer.
    pub async fn command(&self, command: Command) -> Outcome {
        let (sender, answer) = oneshot::channel();
        let next_step = doubt::next_step(&command);
        self.submit(command, Caller::Call(sender));
        let outcome = answer.await.unwrap_or_else(|_| Err(Failure::unknown("the node is stopping")));
        outcome.map_err(|failure| self.disclose(failure.in_doubt(next_step)))
    }

    /// Draws a session id and makes the command that opens it.
    pub(crate) fn open_session_command(
        &self,
        ttl_ms: u64,
        owner: SmolStr,
    ) -> Result<(SessionId, Command), Failure> {
        let mut bytes = [0; 16];
        lockkeeper_net::random::fill(&mut bytes)
            .map_err(|error| Failure::Unavailable(format!("the system gives no random bytes: {error}")))?;
        let session = SessionId(u128::from_le_bytes(bytes));
        Ok((session, Command::OpenSession { session, ttl_ms, owner, identity: None }))
    }

    /// Opens a session; the time to live comes back with it.
    pub async fn open_session(&self, ttl_ms: u64, owner: SmolStr) -> Result<(SessionId, u64), Failure> {
        let (session, command) = self.open_session_command(ttl_ms, owner)?;
        match self.command(command).await? {
            Reply::SessionOpened { ttl_ms, .. } => Ok((session, ttl_ms)),
            other => Err(unexpected(&other)),
        }
    }

    /// Renews a session. `None` if it is lost. Only in office: otherwise nobody may promise anything (S3).
    pub fn keep_alive(&self, session: SessionId) -> Result<Option<u64>, Failure> {
        match mutation::is_on(Mutation::RenewWithoutLease) {
            true => self.inner.shared.leader_term.now()?,
            false => self.now()?,
        };
        match self.must_own(session) {
            Err(Failure::Refused(Refusal::SessionLost)) => return Ok(None),
            owned => owned?,
        }
        let shared = &self.inner.shared;
        let renewed = shared.expiry.renew(&shared.table(), session);
        if renewed.is_some() {
            shared.metrics.keep_alives.inc();
        }
        Ok(renewed)
    }

    /// This stream now speaks for the session. Answers its time to live and what it holds.
    pub(crate) fn attach(
        &self,
        session: SessionId,
        connection: &Arc<Connection>,
    ) -> Result<(u64, Vec<Grant>), Failure> {
        let ttl_ms = self.keep_alive(session)?.ok_or(Failure::Refused(Refusal::SessionLost))?;
        let shared = &self.inner.shared;
        shared.callers.attach(session, connection);
        connection.speaks_for(session);
        Ok((ttl_ms, shared.table().grants_of(session).collect()))
    }

    /// Takes a lock or several, waiting in the queue as long as the request says.
    ///
    /// A caller that goes away while it waits leaves the queue, unless it gave a request id: then it can
    /// come back with the same id and finds its place, or its grant.
    pub async fn acquire(&self, request: Acquire) -> Result<Grant, Failure> {
        let grant = self.acquire_for_answer(request).await?;
        grant.delivered();
        Ok(Grant::clone(&grant))
    }

    /// The same for a caller whose answer has to be sent: without a request id, the grant is given back if it is dropped
    /// before it was delivered.
    pub(crate) async fn acquire_for_answer(&self, mut request: Acquire) -> Result<UndeliveredGrant, Failure> {
        let mut leaves = None;
        let (session, gives_back) = (request.session, request.request.is_none());
        let waits = request.wait != Wait::No;
        match &request.request {
            Some(id) if id.starts_with(OWN_REQUEST_PREFIX) => {
                return Err(Failure::Invalid(format!(
                    "request ids that begin with {OWN_REQUEST_PREFIX} are the node's own: choose another"
                )));
            }
            None if request.wait != Wait::No => {
                let number = self.inner.requests.fetch_add(1, Ordering::Relaxed);
                let id = format_smolstr!(
                    "{OWN_REQUEST_PREFIX}{:x}-{number:x}",
                    self.inner.shared.proposer_id as u32
                );
                request.request = Some(id.clone());
                leaves = Some(LeavesQueue { calls: self, session: request.session, request: Some(id) });
            }
            _ => {}
        }
        let command = Command::Acquire(request);
        let next_step = doubt::next_step(&command);
        let (sender, answer) = oneshot::channel();
        let shared = self.inner.shared.clone();
        // One that waits is taken out of the queue, and its grant with it, by `LeavesQueue`.
        let mut awaited =
            AwaitedGrant { shared, session, answer, gives_back: gives_back && leaves.is_none() };
        self.submit(command, Caller::Call(sender));
        let outcome = awaited.outcome().await;
        if let Some(mut guard) = leaves {
            guard.request = None;
        }
        match outcome.map_err(|failure| self.disclose(failure.in_doubt(next_step)))? {
            Reply::Granted(grant) => {
                let undelivered = UndeliveredGrant::new(self.inner.shared.clone(), session, grant);
                if waits {
                    // Its rights may be gone since it asked: then the grant goes back.
                    self.may_receive(&undelivered)?;
                }
                if !gives_back {
                    undelivered.delivered();
                }
                Ok(undelivered)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// One lock.
    pub fn lock(&self, name: &str) -> Result<LockView, Failure> {
        lockkeeper_core::limits::check_name("name of the lock", name)?;
        self.may(Right::Read, name)?;
        let now = self.now()?;
        Ok(self.inner.shared.table().lock_view(&LockName::from(name), now, SHOWN_OF_ONE_MAX))
    }

    /// A page of locks in use, and whether there are more.
    pub fn locks(&self, prefix: &str, after: &str, limit: u32) -> Result<(Vec<LockView>, bool), Failure> {
        let limit = match limit {
            0 => PAGE_DEFAULT,
            limit => (limit as usize).min(PAGE_MAX),
        };
        self.may_all(Right::Read, prefix)?;
        let now = self.now()?;
        let table = self.inner.shared.table();
        let mut views = table.lock_views(prefix, after, now, SHOWN_IN_LIST_MAX);
        let (mut page, mut bytes): (Vec<LockView>, usize) = (Vec::new(), 0);
        while page.len() < limit && bytes < PAGE_BYTES_MAX {
            let Some(view) = views.next() else { return Ok((page, false)) };
            bytes += size_of_view(&view);
            page.push(view);
        }
        Ok((page, views.next().is_some()))
    }

    /// Whether a token still holds its lock.
    pub fn check_token(&self, request: &v1::CheckTokenRequest) -> Result<v1::CheckTokenResponse, Failure> {
        let (lock, token) = if request.sequencer.is_empty() {
            (LockName::from(&request.lock), Token(request.token))
        } else {
            let sequencer: Sequencer =
                request.sequencer.parse().map_err(|error| Failure::Invalid(format!("{error}")))?;
            (sequencer.lock, sequencer.token)
        };
        lockkeeper_core::limits::check_name("name of the lock", &lock)?;
        self.may(Right::Read, &lock)?;
        self.now()?;
        let table = self.inner.shared.table();
        Ok(v1::CheckTokenResponse {
            valid: table.holds(&lock, token),
            last_token: table.last_token_of(&lock).0,
        })
    }

    /// A value; version 0 if there is none.
    pub fn value(&self, key: &str) -> Result<v1::Value, Failure> {
        lockkeeper_core::limits::check_name("key", key)?;
        self.may(Right::Read, key)?;
        if !mutation::is_on(Mutation::ReadWithoutLease) {
            self.now()?;
        }
        let table = self.inner.shared.table();
        let stored = table.value(key);
        Ok(v1::Value {
            key: key.to_owned(),
            value: stored.map(|stored| stored.bytes.to_vec()).unwrap_or_default(),
            version: stored.map_or(0, |stored| stored.version),
            token: stored.map_or(0, |stored| stored.token.0),
        })
    }

    /// The state of the node and its cell.
    pub fn status(&self) -> v1::StatusResponse {
        let raft = self.inner.consensus.status();
        let timing = self.inner.consensus.timing();
        let shared = &self.inner.shared;
        let table = shared.table();
        let counts = table.counts();
        let now = shared.leader_term.now().unwrap_or_else(|_| table.now());
        v1::StatusResponse {
            node_id: self.inner.home.identity().node_id,
            cell: self.inner.home.cell().unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            leader: raft.leader.unwrap_or(0),
            term: raft.term,
            members: raft
                .members
                .into_iter()
                .map(|member| {
                    let differs = self.inner.consensus.disagreement_of(member.node_id);
                    wire::member(&member, raft.last_log, differs)
                })
                .collect(),
            last_log_index: raft.last_log,
            applied_index: raft.applied,
            snapshot_index: raft.snapshot,
            purged_index: raft.purged,
            sessions: counts.sessions,
            locks_held: counts.grants,
            waiting: counts.waiting,
            values: counts.values,
            last_token: table.last_token().0,
            cell_time_ms: now.0 / 1_000,
            uptime_ms: shared.started.elapsed().as_millis() as u64,
            cell_version: table.cell_version().0,
            cell_version_max: table.supported().0,
            heartbeat_ms: timing.heartbeat.as_millis() as u64,
            election_timeout_ms: timing.election_max.as_millis() as u64,
            round_trip_max_ms: timing.round_trip_max().as_millis() as u64,
            unix_ms: lockkeeper_net::utc::now_ms(),
            table_hash: table.hash(),
            table_hash_index: table.applied(),
            disagreement: self.inner.consensus.stopped_by_disagreement().map(wire::disagreement),
            state_bytes: table.state_bytes(),
            state_bytes_max: table.state_bytes_max(),
            trouble: shared.proposer.trouble().unwrap_or_default(),
        }
    }

    /// Whether the node can answer for the cell, or why not.
    pub fn ready(&self) -> Result<(), Failure> {
        if let Some(why) = self.inner.consensus.status().stopped {
            return Err(Failure::Unavailable(why));
        }
        if let Some(found) = self.inner.consensus.stopped_by_disagreement() {
            return Err(Failure::Unavailable(format!(
                "this node has another lock table than the majority and does not serve: {found}"
            )));
        }
        self.inner.shared.leader_term.now().map(|_| ())
    }

    /// The part of a node that can serve: it leads, or it knows who does and sends callers there. Followers count as
    /// ready, because otherwise a rolling restart of a cell would wait for ever for all but one of them.
    pub fn role(&self) -> Result<&'static str, Failure> {
        match self.ready() {
            Ok(()) => Ok("leader"),
            Err(Failure::NotLeader { leader: Some(_) }) => Ok("follower"),
            Err(failure) => Err(failure),
        }
    }
}

fn unexpected(reply: &Reply) -> Failure {
    Failure::unknown(format!("the table gave an answer that does not fit ({reply:?})"))
}

/// Takes a request out of the queue if its caller goes away while it waits.
struct LeavesQueue<'a> {
    calls: &'a Calls,
    session: SessionId,
    /// None once the answer is there.
    request: Option<SmolStr>,
}

impl Drop for LeavesQueue<'_> {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        let what = Waiting::Request(request);
        self.calls.inner.shared.submit(Command::Cancel { session: self.session, what }, Caller::Nobody);
    }
}

/// The approximate size of a lock in an answer: its texts, and the numbers beside them.
fn size_of_view(view: &LockView) -> usize {
    const NUMBERS: usize = 64;
    let holders = view.holders.iter().map(|it| NUMBERS + it.owner.len() + it.scope.len() + it.value.len());
    let waiters = view.queue.iter().map(|it| NUMBERS + it.owner.len() + it.scope.len());
    NUMBERS + view.name.len() + holders.sum::<usize>() + waiters.sum::<usize>()
}
