//! The engines under test.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// An engine under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineName {
    /// Our own cell.
    Cell,
    /// etcd.
    Etcd,
    /// ZooKeeper.
    Zookeeper,
    /// Consul.
    Consul,
    /// Advisory locks of PostgreSQL.
    Postgres,
    /// One Redis, through the library.
    Redis,
    /// Five Redis, through the library.
    Redlock,
    /// One Redis with `SET NX PX` and `DEL`, the naive recipe, as a control.
    Naive,
}

impl EngineName {
    /// All, in the order of the matrix.
    pub const ALL: [EngineName; 8] = [
        EngineName::Cell,
        EngineName::Etcd,
        EngineName::Zookeeper,
        EngineName::Consul,
        EngineName::Postgres,
        EngineName::Redis,
        EngineName::Redlock,
        EngineName::Naive,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            EngineName::Cell => "cell",
            EngineName::Etcd => "etcd",
            EngineName::Zookeeper => "zookeeper",
            EngineName::Consul => "consul",
            EngineName::Postgres => "postgres",
            EngineName::Redis => "redis",
            EngineName::Redlock => "redlock",
            EngineName::Naive => "naive",
        }
    }

    /// Finds an engine by its name.
    pub fn parse(text: &str) -> Option<EngineName> {
        EngineName::ALL.into_iter().find(|engine| engine.name() == text)
    }

    /// Why a gate cannot check its grants, if it cannot.
    pub fn not_fenced_reason(self) -> Option<&'static str> {
        match self {
            EngineName::Redlock => Some(
                "Redlock has no token: there is no number that its instances agree on, so a gate has nothing to check",
            ),
            EngineName::Naive => Some("the naive recipe has no token: a gate has nothing to check"),
            _ => None,
        }
    }

    /// The shortest supported TTL that is not below `wanted`.
    pub(crate) fn ttl(self, wanted: Duration) -> Duration {
        match self {
            // Consul accepts no shorter one, and may keep a session for twice as long.
            EngineName::Consul => wanted.max(Duration::from_secs(10)),
            _ => wanted,
        }
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
