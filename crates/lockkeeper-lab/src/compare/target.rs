//! The targets of a comparison.

use std::str::FromStr;

use lockkeeper::EngineInfo;

/// An engine of ours, or a bare recipe as a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A durable cell of one node.
    Cell,
    /// A durable cell of three.
    Cell3,
    /// The durable lock table in this process.
    Embedded,
    /// Our engine on Redis that syncs every write.
    Redis,
    /// The bare recipe on the same.
    RedisBare,
    /// The bare recipe on Redis without persistence.
    RedisMemoryBare,
    /// Our engine on three Redis without persistence.
    Redlock,
    /// Our engine on three members of etcd.
    Etcd,
    /// The bare recipe on the same.
    EtcdBare,
    /// Our engine on three members of ZooKeeper.
    Zookeeper,
    /// Our engine on one Consul server.
    Consul,
    /// Our engine on PostgreSQL.
    Postgres,
}

impl Target {
    /// All, in the order of the tables.
    pub const ALL: [Target; 12] = [
        Target::Cell,
        Target::Cell3,
        Target::Embedded,
        Target::Redis,
        Target::RedisBare,
        Target::RedisMemoryBare,
        Target::Redlock,
        Target::Etcd,
        Target::EtcdBare,
        Target::Zookeeper,
        Target::Consul,
        Target::Postgres,
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Target::Cell => "cell",
            Target::Cell3 => "cell3",
            Target::Embedded => "embedded",
            Target::Redis => "redis",
            Target::RedisBare => "redis-bare",
            Target::RedisMemoryBare => "redis-memory-bare",
            Target::Redlock => "redlock",
            Target::Etcd => "etcd",
            Target::EtcdBare => "etcd-bare",
            Target::Zookeeper => "zookeeper",
            Target::Consul => "consul",
            Target::Postgres => "postgres",
        }
    }

    /// The name of the engine in the registry of the library: of the target itself, or of the one it is compared with.
    pub(super) fn engine(self) -> &'static str {
        match self {
            Target::Cell3 => Target::Cell.name(),
            Target::RedisBare | Target::RedisMemoryBare => Target::Redis.name(),
            Target::EtcdBare => Target::Etcd.name(),
            engine => engine.name(),
        }
    }

    /// Whether it is a bare recipe without Lockkeeper.
    pub(super) fn is_bare(self) -> bool {
        matches!(self, Target::RedisBare | Target::RedisMemoryBare | Target::EtcdBare)
    }

    /// Whether it runs in the process of its clients.
    pub(super) fn is_embedded(self) -> bool {
        // Its URLs have no hosts.
        EngineInfo::by_name(self.engine()).is_some_and(|engine| engine.default_port.is_none())
    }

    /// What it is, in a few words.
    pub fn about(self) -> &'static str {
        match self {
            Target::Cell => "a cell of one node",
            Target::Cell3 => "a cell of three nodes",
            Target::Embedded => "the engine in the client's own process, on disk; all clients share it",
            Target::Redis => "our engine on one Redis, appendfsync always",
            Target::RedisBare => {
                "control: SET NX PX and a script directly on the protocol, appendfsync always"
            }
            Target::RedisMemoryBare => "control: the same, Redis without persistence",
            Target::Redlock => "our engine on three Redis without persistence",
            Target::Etcd => "our engine on three members of etcd",
            Target::EtcdBare => {
                "control: lease, transaction and watch directly on gRPC, three members of etcd"
            }
            Target::Zookeeper => "our engine on three members of ZooKeeper",
            Target::Consul => "our engine on one Consul server",
            Target::Postgres => "our engine on PostgreSQL, session level",
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        Target::ALL.into_iter().find(|target| target.name() == text).ok_or_else(|| {
            let names: Vec<_> = Target::ALL.iter().map(|target| target.name()).collect();
            format!("unknown engine \"{text}\" (use {})", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_belongs_to_a_registered_engine() {
        for target in Target::ALL {
            assert!(EngineInfo::by_name(target.engine()).is_some(), "{}", target.name());
        }
    }
    #[test]
    fn every_registered_engine_is_a_target() {
        for engine in EngineInfo::all() {
            let target: Target = engine.name.parse().unwrap();
            assert_eq!(target.engine(), engine.name);
        }
    }
}
