//! One request type and one answer type for all protocols: HTTP bodies, unary gRPC messages and the operations of a stream
//! are converted to a [`Request`]; an [`Answer`] is converted to JSON, messages and answers on a stream.

use lockkeeper_core::access::ELECTION_PREFIX;
use lockkeeper_core::{
    AccessChange, Command, Grant, LockName, Refusal, Reply, SessionId, Token, Wait, limits,
};
use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, format_smolstr};

use crate::access::{AccessState, NewToken};
use crate::election::Election;
use crate::graph::WaitGraph;
use crate::history::{Audit, LockHistory};
use crate::lock::{LockPage, LockState};
use crate::rate::RateTaken;
use crate::session::{KeptAlive, SessionFilter, SessionOpened, SessionPage};
use crate::status::{Members, Status};
use crate::token::TokenCheck;
use crate::top::Top;
use crate::value::{Value, Written};
use crate::wire::answers;

/// A request of a client.
#[derive(Debug, Clone)]
pub enum Request {
    /// A command for the lock table, complete except for the caller's identity.
    Command(Command),
    /// Open a session; the node generates its id.
    OpenSession {
        /// Its time to live without a renewal.
        ttl_ms: u64,
        /// Description of the client, for people.
        owner: SmolStr,
    },
    /// Renew a session.
    KeepAlive(SessionId),
    /// The holders and waiters of a lock.
    Lock(LockName),
    /// A page of the locks in use.
    Locks {
        /// Only names with this prefix.
        prefix: String,
        /// The last name of the previous page.
        after: String,
        /// Maximum number of locks in the page; 0 for the default.
        limit: usize,
    },
    /// Whether a token still holds its lock.
    Token {
        /// The lock.
        lock: LockName,
        /// Its token.
        token: Token,
    },
    /// A value.
    Value(String),
    /// The leader of an election, by its lock.
    Election(LockName),
    /// The last events of a lock.
    History {
        /// The lock.
        lock: LockName,
        /// Maximum number of events; 0 for all.
        limit: usize,
    },
    /// The actions of operators and the leaders of the cell.
    Audit {
        /// Maximum number of actions; 0 for the default.
        limit: usize,
    },
    /// The most contended locks, those held the longest, and the statistics of the last hour.
    Top {
        /// Maximum number of locks in each list; 0 for the default.
        limit: usize,
    },
    /// The wait graph of one lock or of the whole cell.
    Graph(Option<LockName>),
    /// A page of sessions.
    Sessions(SessionFilter),
    /// The state of the node and its cell.
    Status,
    /// The members of the cell.
    Members,
    /// All rules, access tokens and quotas.
    Access,
    /// Change rules, access tokens or quotas.
    ChangeAccess(AccessChange),
    /// Turn access control on.
    EnableAccess {
        /// The first administrator.
        identity: String,
    },
    /// Create an access token.
    CreateToken {
        /// The identity that it authenticates.
        identity: String,
    },
    /// Add a member.
    AddMember {
        /// Its id.
        node_id: u64,
        /// The host:port at which the node answers.
        address: String,
    },
    /// Remove a member.
    RemoveMember {
        /// Its id.
        node_id: u64,
    },
    /// The whole state, for a backup.
    Snapshot,
    /// The metrics of the node.
    Metrics,
    /// The health of the cell, for the console.
    Health,
}

impl From<Command> for Request {
    fn from(command: Command) -> Request {
        Request::Command(command)
    }
}

/// The permission that a request needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RequiredRight<'a> {
    /// The caller is authenticated.
    Authenticated,
    /// The caller has any right.
    AnyRight,
    /// The right to read this name.
    Read(&'a str),
    /// The right to read all names with this prefix.
    ReadAll(&'a str),
    /// The right to administer everything.
    Administer,
    /// The caller is the owner of this session.
    OwnSession(SessionId),
    /// The permission that the command needs.
    Command(&'a Command),
}

impl Request {
    /// The permission that it needs.
    pub fn required_right(&self) -> RequiredRight<'_> {
        match self {
            Request::Command(command) => RequiredRight::Command(command),
            Request::OpenSession { .. } | Request::Status | Request::Members | Request::Metrics => {
                RequiredRight::Authenticated
            }
            Request::KeepAlive(session) => RequiredRight::OwnSession(*session),
            Request::Lock(name)
            | Request::Token { lock: name, .. }
            | Request::Election(name)
            | Request::History { lock: name, .. } => RequiredRight::Read(name),
            Request::Value(key) => RequiredRight::Read(key),
            Request::Locks { prefix, .. } => RequiredRight::ReadAll(prefix),
            Request::Audit { .. } | Request::Top { .. } | Request::Graph(_) | Request::Sessions(_) => {
                RequiredRight::ReadAll("")
            }
            Request::Health => RequiredRight::AnyRight,
            Request::Access
            | Request::ChangeAccess(_)
            | Request::EnableAccess { .. }
            | Request::CreateToken { .. }
            | Request::AddMember { .. }
            | Request::RemoveMember { .. }
            | Request::Snapshot => RequiredRight::Administer,
        }
    }
}

/// The answer to a request.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "each variant is named after its type")]
pub enum Answer {
    Done,
    Granted(Grant),
    Forced { released: u32, last_token: u64 },
    SessionOpened(SessionOpened),
    KeptAlive(KeptAlive),
    RateTaken(RateTaken),
    Written(Written),
    Lock(LockState),
    Locks(LockPage),
    Token(TokenCheck),
    Value(Value),
    Election(Election),
    History(LockHistory),
    Audit(Audit),
    Top(Top),
    Graph(WaitGraph),
    Sessions(SessionPage),
    Status(Box<Status>),
    Members(Members),
    Access(AccessState),
    NewToken(NewToken),
}

/// Error for an answer of another kind than the request expects: a bug of the node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the answer does not match the request ({0})")]
pub struct WrongAnswer(String);

impl From<Answer> for WrongAnswer {
    fn from(answer: Answer) -> WrongAnswer {
        WrongAnswer(format!("{answer:?}"))
    }
}

impl Answer {
    /// Converts the reply to a command. `opened` is the id of an opened session, which the reply does not contain.
    pub fn new(reply: Reply, opened: Option<SessionId>) -> Answer {
        match reply {
            Reply::Done | Reply::Queued { .. } => Answer::Done,
            Reply::SessionOpened { ttl_ms, .. } => {
                Answer::SessionOpened(SessionOpened::new(opened.unwrap_or(SessionId::MIN), ttl_ms))
            }
            Reply::Granted(grant) => Answer::Granted(grant),
            Reply::Forced { released, last_token } => Answer::Forced { released, last_token: last_token.0 },
            Reply::Rate { allowed, retry_after_ms } => {
                Answer::RateTaken(RateTaken { allowed, retry_after_ms })
            }
            Reply::Put { version } => Answer::Written(Written { version }),
        }
    }
}

/// A call of the HTTP interface. Its body or query has this type, and its answer has the type [`Call::Answer`].
pub trait Call {
    /// The type of the answer.
    type Answer;

    /// JSON examples of the body and of its answer, for the documentation.
    const EXAMPLE: Option<(&'static str, &'static str)> = None;

    /// Converts the call to a request.
    fn into_request(self) -> Result<Request, Refusal>;
}

/// The empty answer of successful calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Done {}

/// A number in a query; empty is the same as absent.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline))]
pub struct Limit(#[cfg_attr(feature = "schema", schemars(with = "u32"))] String);

impl Limit {
    pub(crate) fn number(&self) -> Result<usize, Refusal> {
        match self.0.as_str() {
            "" => Ok(0),
            digits => digits.parse::<u32>().map(|limit| limit as usize).map_err(|_| {
                Refusal::invalid(format!("the query does not fit: limit is \"{digits}\", not a whole number"))
            }),
        }
    }
}

/// Parses a session id.
pub fn session_id(text: &str) -> Result<SessionId, Refusal> {
    // A malformed id is the id of no session.
    text.parse().map_err(|_| Refusal::SessionLost)
}

/// The lock of an election. Its holder is the leader.
pub fn election_lock(election: &str) -> Result<LockName, Refusal> {
    limits::check_name("name of the election", election)?;
    let lock = format_smolstr!("{ELECTION_PREFIX}{election}");
    limits::check_name("name of the election", &lock)?;
    Ok(lock)
}

/// Checks the name of a lock for a read.
pub(crate) fn lock_name(name: String) -> Result<LockName, Refusal> {
    limits::check_name("name of the lock", &name)?;
    Ok(name.into())
}

pub(crate) fn wait(wait_ms: u64, forever: bool) -> Wait {
    match (forever, wait_ms) {
        (true, _) => Wait::Forever,
        (false, 0) => Wait::No,
        (false, ms) => Wait::ForMs(ms),
    }
}

/// The text, or `None` if it is empty.
pub(crate) fn some_text(text: String) -> Option<SmolStr> {
    (!text.is_empty()).then(|| text.into())
}

answers! {
    Answer::Done => Done as Done {};
}
