//! Capabilities and guarantees of an engine, as data: shown by `lockkeeper doctor`, and the source of the table in
//! `docs/engines.md`.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::engines::registry::EngineInfo;

/// Class of an engine: what its locks are suitable for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Avoids doing work twice. Two holders at once are possible, so the work must tolerate that.
    Efficiency,
    /// Protects data: with the token checked at the resource, a stale holder does no harm.
    Correctness,
}

/// Kind of fencing token that grants carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenKind {
    /// No token.
    None,
    /// Increases until the server loses its data.
    Volatile,
    /// Increases across restarts and fail-overs.
    Durable,
}

/// Clock that ends the lease of a holder that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClockAuthority {
    /// A replicated time that never goes back.
    Quorum,
    /// The clock of the only server, or of the leader.
    Server,
    /// The clocks of several independent servers: a jump of any of them can end a lease early.
    EachServer,
}

/// Order in which waiters acquire a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fairness {
    /// FIFO over all clients.
    Fifo,
    /// FIFO within one keeper; keepers race.
    FifoInKeeper,
}

/// How a holder learns of a loss before its own deadline passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossDetection {
    /// The server pushes it.
    Pushed,
    /// By the loss of the connection or session.
    Session,
    /// With the next renewal, at a third of the time to live.
    Renewal,
}

/// Capabilities and guarantees of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// The name of the engine, such as `cell`.
    pub engine: &'static str,
    /// The beginning of its URLs, such as `lockkeeper://`.
    #[serde(rename = "scheme")]
    pub prefix: &'static str,
    /// What its locks are suitable for.
    pub class: Class,
    /// Whether its grants carry a fencing token.
    pub token: TokenKind,
    /// Where the token comes from.
    pub token_source: &'static str,
    /// Which clock ends a lease.
    pub clock: ClockAuthority,
    /// The order in which waiters acquire a lock.
    pub fairness: Fairness,
    /// How a holder learns of a loss.
    pub loss: LossDetection,
    /// Supports shared locks.
    pub shared: bool,
    /// Supports counted locks (semaphores).
    pub counted: bool,
    /// Supports acquiring several locks at once, all or nothing.
    pub several: bool,
    /// Supports a lock-delay: a lock stays closed for a while after its holder was lost.
    pub lock_delay: bool,
    /// Can report the holders and waiters of a lock.
    pub who: bool,
    /// Supports forced releases by operators.
    pub force_release: bool,
    /// Supports elections: candidates announce a value that observers see.
    pub elections: bool,
    /// Prevents or detects deadlocks of scopes.
    pub scopes: bool,
    /// Supports shared rate limiters.
    pub rates: bool,
    /// Stores small values beside the locks.
    pub values: bool,
    /// The shortest time to live.
    #[serde(rename = "ttl_min_ms", serialize_with = "as_ms")]
    pub ttl_min: Duration,
    /// The longest time to live.
    #[serde(rename = "ttl_max_ms", serialize_with = "as_ms")]
    pub ttl_max: Duration,
}

impl Capabilities {
    /// Returns the capabilities of all built-in engines, in the order of the documentation.
    pub fn all() -> Vec<&'static Capabilities> {
        EngineInfo::all().iter().filter_map(|engine| engine.capabilities()).collect()
    }

    /// Renders the capabilities of all built-in engines as a Markdown table.
    pub fn table() -> String {
        let mut text = String::from(
            "| engine | class | token | lease clock | fairness | loss detection | shared | counted \
             | several at once | lock-delay | who | force-release | elections | scopes | rates | values | TTL |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for engine in Capabilities::all() {
            text.push_str(&engine.row());
        }
        text
    }

    fn row(&self) -> String {
        let yes = |can: bool| if can { "yes" } else { "no" };
        let token = match self.token {
            TokenKind::None => "none".to_owned(),
            kind => format!("{kind}: {}", self.token_source),
        };
        format!(
            "| `{}` | {} | {token} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} - {} |\n",
            self.prefix,
            self.class,
            self.clock,
            self.fairness,
            self.loss,
            yes(self.shared),
            yes(self.counted),
            yes(self.several),
            yes(self.lock_delay),
            yes(self.who),
            yes(self.force_release),
            yes(self.elections),
            yes(self.scopes),
            yes(self.rates),
            yes(self.values),
            rounded(self.ttl_min),
            rounded(self.ttl_max),
        )
    }
}

fn rounded(duration: Duration) -> String {
    match duration.as_millis() {
        ms if ms % 3_600_000 == 0 => format!("{} h", ms / 3_600_000),
        ms if ms % 1_000 == 0 => format!("{} s", ms / 1_000),
        ms => format!("{ms} ms"),
    }
}

/// Weak spot in the configuration of an engine's servers, as found by [`Keeper::examine`](crate::Keeper::examine).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// A stable name for scripts, such as `no-persistence`.
    pub code: &'static str,
    /// The weak spot and its possible consequences.
    pub what: String,
    /// The recommended change.
    pub advice: String,
}

impl Finding {
    #[cfg(feature = "_servers")]
    pub(crate) fn new(code: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { code, what: what.into(), advice: advice.into() }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Efficiency => "efficiency",
            Class::Correctness => "correctness",
        })
    }
}

impl fmt::Display for TokenKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenKind::None => "none",
            TokenKind::Volatile => "volatile",
            TokenKind::Durable => "durable",
        })
    }
}

impl fmt::Display for ClockAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClockAuthority::Quorum => "quorum",
            ClockAuthority::Server => "server",
            ClockAuthority::EachServer => "each server",
        })
    }
}

impl fmt::Display for Fairness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fairness::Fifo => "FIFO",
            Fairness::FifoInKeeper => "FIFO within a keeper; keepers race",
        })
    }
}

impl fmt::Display for LossDetection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossDetection::Pushed => "pushed by the server",
            LossDetection::Session => "on loss of the connection or session",
            LossDetection::Renewal => "at the next renewal",
        })
    }
}

fn as_ms<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
