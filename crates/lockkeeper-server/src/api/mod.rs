//! All operations of a node. HTTP, unary gRPC and the stream decode their input into a [`Request`]; this module authorizes it
//! and turns it into a command for the log or a read from the lock table.

mod access;
mod acquire;
mod backup;
mod election;
mod members;
pub(crate) mod page_room;
mod read;
mod status;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use lockkeeper_api::{Answer, Request, WrongAnswer};
use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::{CellTime, Command, Grant, Refusal, SessionId};
use smol_str::SmolStr;
use tokio::sync::oneshot;

pub(crate) use self::acquire::check_request_id;
pub use self::backup::Backup;
pub use self::read::View;
use crate::data_dir::DataDir;
use crate::effects::callers::Caller;
use crate::effects::undelivered::UndeliveredGrant;
use crate::failure::{Failure, Outcome};
use crate::limits::budget::{Budgets, ByteBudget, ConnectionBudget, IdentityBudget};
use crate::observe::disk::DiskWatch;
use crate::raft::Consensus;
use crate::raft::snapshot::SnapshotStore;
use crate::security::{Authenticator, Principal, Rates};
use crate::session::connection::Connection;
use crate::shared::Shared;

/// The operations of a node on behalf of one caller. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    inner: Arc<Inner>,
    principal: Principal,
}

/// An [`Api`] that does not keep the node alive, for references held by the node itself.
#[derive(Clone)]
pub(crate) struct WeakApi {
    inner: Weak<Inner>,
    principal: Principal,
}

impl WeakApi {
    pub(crate) fn upgrade(&self) -> Option<Api> {
        Some(Api { inner: self.inner.upgrade()?, principal: self.principal.clone() })
    }
}

impl fmt::Debug for WeakApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakApi").field("principal", &self.principal).finish_non_exhaustive()
    }
}

struct Inner {
    shared: Arc<Shared>,
    consensus: Consensus,
    home: Arc<DataDir>,
    snapshots: SnapshotStore,
    /// Counter for the request ids that the node generates.
    requests: AtomicU64,
    authenticator: Arc<Authenticator>,
    rates: Rates,
    budgets: Budgets,
    disk_watch: DiskWatch,
}

/// What an authorized request becomes.
pub(crate) enum Admitted {
    /// A command that goes through the log.
    Command(Command),
    /// A read that is answered from what this node knows.
    Read(Request),
    /// An administrator's request that takes several steps.
    Steps(Request),
}

impl Admitted {
    /// The command, if it is one.
    fn into_command(self) -> Result<Command, Failure> {
        match self {
            Admitted::Command(command) => Ok(command),
            Admitted::Read(_) | Admitted::Steps(_) => {
                Err(Failure::unknown("the command became another request"))
            }
        }
    }
}

/// An answer, together with the grant in it until the answer is sent.
pub(crate) struct Answered {
    pub(crate) answer: Answer,
    pub(crate) undelivered: Option<UndeliveredGrant>,
}

impl From<Answer> for Answered {
    fn from(answer: Answer) -> Answered {
        Answered { answer, undelivered: None }
    }
}

impl Answered {
    /// Converts the answer into the type that the call returns.
    pub(crate) fn into_parts<T>(self) -> Result<(T, Option<UndeliveredGrant>), Failure>
    where
        T: TryFrom<Answer, Error = WrongAnswer>,
    {
        Ok((self.answer.try_into()?, self.undelivered))
    }
}

impl Api {
    pub(crate) fn new(
        shared: Arc<Shared>,
        consensus: Consensus,
        home: Arc<DataDir>,
        snapshots: SnapshotStore,
        authenticator: Arc<Authenticator>,
    ) -> Api {
        let disk_watch = DiskWatch::new(home.log().and_then(|log| Some(log.parent()?.to_owned())));
        let inner = Arc::new(Inner {
            shared,
            consensus,
            home,
            snapshots,
            requests: AtomicU64::new(0),
            authenticator,
            rates: Rates::default(),
            budgets: Budgets::default(),
            disk_watch,
        });
        Api { inner, principal: Principal::Process }
    }

    /// Returns the same operations on behalf of another caller.
    pub(crate) fn on_behalf_of(&self, principal: Principal) -> Api {
        Api { inner: self.inner.clone(), principal }
    }

    pub(crate) fn downgrade(&self) -> WeakApi {
        WeakApi { inner: Arc::downgrade(&self.inner), principal: self.principal.clone() }
    }

    /// Returns the same operations on behalf of the owner of this token.
    pub(crate) fn with_token(&self, token: &str) -> Result<Api, Failure> {
        let found = self.inner.authenticator.by_token(token, self.inner.shared.table().access());
        match found {
            Ok(principal) => Ok(self.on_behalf_of(principal)),
            // The token may be so new that this follower has not applied it yet.
            Err(_) => {
                self.inner.shared.leader_term.now()?;
                self.inner.shared.metrics.turned_away("unauthenticated");
                Err(crate::security::admission::unknown_token())
            }
        }
    }

    pub(crate) fn principal(&self) -> &Principal {
        &self.principal
    }

    pub(crate) fn authenticator(&self) -> &Authenticator {
        &self.inner.authenticator
    }

    /// Returns the byte budget of this caller on this connection.
    pub(crate) fn budget(&self, connection: &ConnectionBudget) -> ByteBudget {
        self.inner.budgets.of(connection, self.principal.identity())
    }

    /// Returns the budget of all connections of a principal. All unauthenticated callers share one.
    pub(crate) fn budget_of(&self, principal: &Principal) -> Arc<IdentityBudget> {
        self.inner.budgets.identity(principal.identity())
    }

    pub(crate) fn rates(&self) -> &Rates {
        &self.inner.rates
    }

    pub(crate) fn consensus(&self) -> &Consensus {
        &self.inner.consensus
    }

    pub(crate) fn home(&self) -> &DataDir {
        &self.inner.home
    }

    pub(crate) fn disk_watch(&self) -> &DiskWatch {
        &self.inner.disk_watch
    }

    pub(crate) fn snapshots(&self) -> &SnapshotStore {
        &self.inner.snapshots
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// Checks that this node leads and may answer reads from its own table.
    pub fn check_leads(&self) -> Result<(), Failure> {
        self.now().map(|_| ())
    }

    /// Returns the index of the last applied entry and a checksum of the table. Both are equal on all members that have applied
    /// the same entries.
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

    /// Returns cell time if this node may answer from its own table: it leads, and a majority confirmed that so recently
    /// that no other node can lead (S3). Otherwise its table may be stale. Nor does it answer from a table of which it is
    /// unknown whether a majority has the same (S13).
    pub(crate) fn now(&self) -> Result<CellTime, Failure> {
        let now = self.inner.shared.leader_term.now()?;
        self.inner.consensus.check_agreement().map_err(|_| Failure::no_leader())?;
        match self.inner.consensus.lease().is_valid() {
            true => Ok(now),
            false => Err(Failure::no_majority()),
        }
    }

    /// Authorizes a request and converts it. Every request of every protocol passes here.
    pub(crate) fn admit(&self, request: Request) -> Result<Admitted, Failure> {
        self.authorize(&request)?;
        Ok(match request {
            Request::ChangeAccess(change) | Request::Command(Command::ChangeAccess { change, .. }) => {
                self.check_change(&change)?;
                Admitted::Command(Command::ChangeAccess { by: self.signature(), change })
            }
            Request::Command(mut command) => {
                self.sign(&mut command);
                Admitted::Command(command)
            }
            Request::OpenSession { ttl_ms, owner } => {
                let mut command = open_session_command(ttl_ms, owner)?;
                self.sign(&mut command);
                Admitted::Command(command)
            }
            steps @ (Request::EnableAccess { .. }
            | Request::CreateToken { .. }
            | Request::AddMember { .. }
            | Request::RemoveMember { .. }) => Admitted::Steps(steps),
            read => Admitted::Read(read),
        })
    }

    /// Carries out a request and waits for its answer.
    pub(crate) async fn call(&self, request: Request) -> Result<Answered, Failure> {
        match self.admit(request)? {
            Admitted::Command(Command::Acquire(request)) => {
                let grant = self.acquire_admitted(request).await?;
                Ok(Answered { answer: Answer::Granted(Grant::clone(&grant)), undelivered: Some(grant) })
            }
            Admitted::Command(command) => {
                let opened = command.opens();
                Ok(Answer::new(self.run(command).await?, opened).into())
            }
            Admitted::Read(request) => Ok(self.read(request)?.into()),
            Admitted::Steps(Request::EnableAccess { identity }) => {
                Ok(Answer::NewToken(self.enable_access(&identity).await?).into())
            }
            Admitted::Steps(Request::CreateToken { identity }) => {
                Ok(Answer::NewToken(self.create_token(&identity).await?).into())
            }
            Admitted::Steps(Request::AddMember { node_id, address }) => {
                Ok(Answer::Members(self.add_member(node_id, &address).await?).into())
            }
            Admitted::Steps(Request::RemoveMember { node_id }) => {
                Ok(Answer::Members(self.remove_member(node_id).await?).into())
            }
            Admitted::Steps(other) => Err(Failure::Unsupported(format!("{other:?} is not supported here"))),
        }
    }

    /// Sends a command through the log and waits for its reply.
    pub async fn command(&self, command: Command) -> Outcome {
        let command = self.admit(command.into())?.into_command()?;
        self.run(command).await
    }

    /// Sends a command that is already admitted.
    async fn run(&self, command: Command) -> Outcome {
        let (sender, answer) = oneshot::channel();
        let advice = command.retry_advice();
        self.inner.shared.submit(command, Caller::Call(sender));
        let outcome = answer.await.unwrap_or_else(|_| Err(Failure::unknown("the node is stopping")));
        outcome.map_err(|failure| self.disclose(failure.in_doubt(advice)))
    }

    /// Opens a session. Returns its id and its time to live.
    pub async fn open_session(&self, ttl_ms: u64, owner: SmolStr) -> Result<(SessionId, u64), Failure> {
        let command = open_session_command(ttl_ms, owner)?;
        let Some(session) = command.opens() else { return Err(Failure::unknown("no session was opened")) };
        match self.command(command).await? {
            lockkeeper_core::Reply::SessionOpened { ttl_ms, .. } => Ok((session, ttl_ms)),
            other => Err(unexpected(&other)),
        }
    }

    /// Renews a session of the caller. Returns its time to live, or `None` if it is lost.
    pub fn keep_alive(&self, session: SessionId) -> Result<Option<u64>, Failure> {
        match self.check_owns_session(session) {
            Err(Failure::Refused(Refusal::SessionLost)) => {
                self.now()?;
                Ok(None)
            }
            Err(other) => Err(other),
            Ok(()) => self.renew(session),
        }
    }

    /// Renews a session without checking its owner. Fails unless this node leads with a valid lease (S3).
    fn renew(&self, session: SessionId) -> Result<Option<u64>, Failure> {
        match mutation::is_on(Mutation::RenewWithoutLease) {
            true => self.inner.shared.leader_term.now()?,
            false => self.now()?,
        };
        let shared = &self.inner.shared;
        let renewed = shared.expiry.renew(&shared.table(), session);
        if renewed.is_some() {
            shared.metrics.keep_alives.inc();
        }
        Ok(renewed)
    }

    /// Attaches the session to this stream. Returns its time to live and its grants.
    pub(crate) fn attach(
        &self,
        session: SessionId,
        connection: &Arc<Connection>,
    ) -> Result<(u64, Vec<Grant>), Failure> {
        let ttl_ms = self.keep_alive(session)?.ok_or(Failure::Refused(Refusal::SessionLost))?;
        let shared = &self.inner.shared;
        shared.callers.attach(session, connection);
        connection.add_session(session);
        Ok((ttl_ms, shared.table().grants_of(session).collect()))
    }
}

/// Generates a session id and builds the command that opens it.
fn open_session_command(ttl_ms: u64, owner: SmolStr) -> Result<Command, Failure> {
    let mut bytes = [0; 16];
    lockkeeper_net::random::fill(&mut bytes).map_err(|error| {
        Failure::Unavailable(format!("failed to get random bytes from the operating system: {error}"))
    })?;
    let session = SessionId(u128::from_le_bytes(bytes));
    Ok(Command::OpenSession { session, ttl_ms, owner, identity: None })
}

fn unexpected(reply: &lockkeeper_core::Reply) -> Failure {
    Failure::unknown(format!("unexpected reply to the command ({reply:?})"))
}
