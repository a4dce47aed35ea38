//! What an engine can and cannot promise, as data: shown by `lockkeeper doctor`, and the source of the table in
//! `docs/engines.md`.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::engines::registry::EngineInfo;

/// What a lock of the engine is fit for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// It saves doing work twice. Now and then two holders are possible, so the work must bear that.
    Efficiency,
    /// With the token checked at the resource, a stale holder does no harm.
    Correctness,
}

/// Whether grants carry a number that rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenKind {
    /// There is none.
    None,
    /// It rises for as long as the server keeps its memory, and not beyond.
    Volatile,
    /// It rises over restarts and fail-overs.
    Durable,
}

/// Whose clock ends the lease of a holder that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClockAuthority {
    /// A time that a quorum agrees on and that never goes back.
    Quorum,
    /// That of the one server, or of the one that leads.
    Server,
    /// Those of several servers that know nothing of each other: a jump of one counts.
    EachServer,
}

/// Who is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fairness {
    /// Whoever came first, over all clients.
    Fifo,
    /// Whoever came first within one keeper; keepers race.
    FifoInKeeper,
}

/// How a holder learns early that its lock is gone. Its own deadline tells it in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossDetection {
    /// The server says so.
    Told,
    /// The loss of the connection or session says so.
    Session,
    /// The next renewal, at a third of the time to live, finds out.
    Renewal,
}

/// All that can be said about an engine before it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// Its name, such as `cell`.
    pub engine: &'static str,
    /// How its URL begins.
    pub scheme: &'static str,
    /// What its locks are fit for.
    pub class: Class,
    /// Whether its grants can be fenced.
    pub token: TokenKind,
    /// Where the token comes from.
    pub token_source: &'static str,
    /// Whose clock ends a lease.
    pub clock: ClockAuthority,
    /// Who is next.
    pub fairness: Fairness,
    /// How a holder learns of a loss.
    pub loss: LossDetection,
    /// Several holders together.
    pub shared: bool,
    /// Locks with more than one permit.
    pub counted: bool,
    /// Several locks at once, all or nothing.
    pub several: bool,
    /// A lock can stay closed after its holder was lost.
    pub lock_delay: bool,
    /// It can be asked who holds a lock.
    pub who: bool,
    /// An operator can free a lock.
    pub force_release: bool,
    /// Elections: candidates announce a value, and observers see it.
    pub elections: bool,
    /// Deadlocks of scopes are prevented or found.
    pub scopes: bool,
    /// Rates that all instances share.
    pub rates: bool,
    /// It keeps small values beside the locks.
    pub values: bool,
    /// The shortest time to live.
    #[serde(rename = "ttl_min_ms", serialize_with = "as_ms")]
    pub ttl_min: Duration,
    /// The longest.
    #[serde(rename = "ttl_max_ms", serialize_with = "as_ms")]
    pub ttl_max: Duration,
}

impl Capabilities {
    /// The engines that are built in, in the order of the documentation.
    pub fn all() -> Vec<&'static Capabilities> {
        EngineInfo::all().iter().filter_map(EngineInfo::capabilities).collect()
    }

    /// All of them as a table in Markdown.
    pub fn table() -> String {
        let mut text = String::from(
            "| engine | class | token | whose clock ends a lease | who is next | how a loss is learnt | shared | counted \
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
            self.scheme,
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
            words(self.ttl_min),
            words(self.ttl_max),
        )
    }
}

fn words(duration: Duration) -> String {
    match duration.as_millis() {
        ms if ms % 3_600_000 == 0 => format!("{} h", ms / 3_600_000),
        ms if ms % 1_000 == 0 => format!("{} s", ms / 1_000),
        ms => format!("{ms} ms"),
    }
}

/// Something about the set-up of an engine that is not as safe as it could be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// A short name that scripts can rely on, such as `no-persistence`.
    pub code: &'static str,
    /// What is the case, and what can come of it.
    pub what: String,
    /// What to do.
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
            ClockAuthority::Quorum => "the quorum's",
            ClockAuthority::Server => "the server's",
            ClockAuthority::EachServer => "each server's own",
        })
    }
}

impl fmt::Display for Fairness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fairness::Fifo => "first come, first served",
            Fairness::FifoInKeeper => "keepers race; in a keeper first come, first served",
        })
    }
}

impl fmt::Display for LossDetection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossDetection::Told => "the server tells",
            LossDetection::Session => "with the connection or session",
            LossDetection::Renewal => "at the next renewal",
        })
    }
}

fn as_ms<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
