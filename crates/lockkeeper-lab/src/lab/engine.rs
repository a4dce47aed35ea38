//! The engines under test: those of the library's registry that have servers, and a naive recipe as a control.

use std::fmt;
use std::time::Duration;

use lockkeeper::{Capabilities, EngineInfo, TokenKind};
use serde::Serialize;

/// An engine under test, by its name in the registry of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct EngineName(&'static str);

/// The engines that a scenario treats in a special way.
impl EngineName {
    /// Our own cell.
    pub const CELL: EngineName = EngineName("cell");
    /// etcd.
    pub const ETCD: EngineName = EngineName("etcd");
    /// ZooKeeper.
    pub const ZOOKEEPER: EngineName = EngineName("zookeeper");
    /// Consul.
    pub const CONSUL: EngineName = EngineName("consul");
    /// Advisory locks of PostgreSQL.
    pub const POSTGRES: EngineName = EngineName("postgres");
    /// One Redis, through the library.
    pub const REDIS: EngineName = EngineName("redis");
    /// Five Redis, through the library.
    pub const REDLOCK: EngineName = EngineName("redlock");
    /// One Redis with `SET NX PX` and `DEL`, the naive recipe, as a control.
    pub const NAIVE: EngineName = EngineName("naive");
}

impl EngineName {
    /// All, in the order of the matrix.
    pub fn all() -> impl Iterator<Item = EngineName> {
        // The others have no servers that could fail.
        let with_servers = EngineInfo::all().iter().filter(|engine| engine.default_port.is_some());
        with_servers.map(|engine| EngineName(engine.name)).chain([EngineName::NAIVE])
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        self.0
    }

    /// Finds an engine by its name.
    pub fn parse(text: &str) -> Option<EngineName> {
        EngineName::all().find(|engine| engine.name() == text)
    }

    /// What the engine promises; `None` for the control.
    fn capabilities(self) -> Option<&'static Capabilities> {
        EngineInfo::by_name(self.0)?.capabilities()
    }

    /// Why a gate cannot check its grants, if it cannot.
    pub fn not_fenced_reason(self) -> Option<&'static str> {
        match self.capabilities() {
            None => Some("the naive recipe has no token: a gate has nothing to check"),
            Some(engine) if engine.token == TokenKind::None => Some(
                "the engine has no token: there is no number that its servers agree on, so a gate has nothing to check",
            ),
            Some(_) => None,
        }
    }

    /// The shortest supported TTL that is not below `wanted`.
    pub(crate) fn ttl(self, wanted: Duration) -> Duration {
        self.capabilities().map_or(wanted, |engine| wanted.max(engine.ttl_min))
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_and_servers_have_the_same_names() {
        for kind in lockkeeper_testkit::SERVERS {
            assert!(EngineName::parse(kind.engine).is_some(), "{}", kind.engine);
        }
        for engine in
            EngineName::all().filter(|engine| ![EngineName::CELL, EngineName::NAIVE].contains(engine))
        {
            assert!(lockkeeper_testkit::SERVERS.iter().any(|kind| kind.engine == engine.name()), "{engine}");
        }
    }

    #[test]
    fn named_engines_are_in_the_registry() {
        use EngineName as E;
        for engine in [E::CELL, E::ETCD, E::ZOOKEEPER, E::CONSUL, E::POSTGRES, E::REDIS, E::REDLOCK] {
            assert!(engine.capabilities().is_some(), "{engine}");
        }
    }
}
