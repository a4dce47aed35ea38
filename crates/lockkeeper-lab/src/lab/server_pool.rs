//! The running servers, which are kept from one scenario to the next unless a scenario broke them.

use std::collections::BTreeMap;

use lockkeeper_testkit::cell::Cell;
use lockkeeper_testkit::consul::Consul;
use lockkeeper_testkit::etcd::Etcd;
use lockkeeper_testkit::postgres::Postgres;
use lockkeeper_testkit::redis::Redis;
use lockkeeper_testkit::zookeeper::Zookeeper;
use lockkeeper_testkit::{ServerError, redis};

use super::engine::EngineName;
use crate::lockkeeper_binary::LockkeeperBinary;
use crate::servers::Servers;

/// The set of servers of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topology {
    /// One server, or the five of Redlock.
    Single,
    /// Three members that agree.
    Three,
    /// One server without persistence.
    Volatile,
    /// Five Redis, of which the third has a clock that can be moved.
    MovedClock,
}

/// Which Redlock instance has the clock that can be moved.
pub(crate) const MOVED: usize = 2;
const REDLOCK_INSTANCES: usize = 5;

/// The running servers.
pub(crate) struct ServerPool {
    binary: LockkeeperBinary,
    running: BTreeMap<(EngineName, Topology), Servers>,
}

impl ServerPool {
    pub(crate) fn new(binary: LockkeeperBinary) -> ServerPool {
        ServerPool { binary, running: BTreeMap::new() }
    }

    /// Returns the servers, after starting them if they do not run yet.
    pub(crate) fn servers(
        &mut self,
        engine: EngineName,
        topology: Topology,
    ) -> Result<&mut Servers, ServerError> {
        if !self.running.contains_key(&(engine, topology)) {
            let servers = self.start(engine, topology)?;
            self.running.insert((engine, topology), servers);
        }
        self.running.get_mut(&(engine, topology)).ok_or(ServerError::Missing {
            program: "the server",
            advice: "this is a bug of the lab: please report it",
        })
    }

    /// Stops these servers, because a scenario changed them permanently.
    pub(crate) fn end(&mut self, engine: EngineName, topology: Topology) {
        self.running.remove(&(engine, topology));
    }

    /// Stops all servers of an engine.
    pub(crate) fn end_all(&mut self, engine: EngineName) {
        self.running.retain(|(running, _), _| *running != engine);
    }

    fn start(&self, engine: EngineName, topology: Topology) -> Result<Servers, ServerError> {
        let count = if topology == Topology::Three { 3 } else { 1 };
        let settings = if topology == Topology::Volatile { &[][..] } else { redis::DURABLE };
        Ok(match engine {
            EngineName::Cell => Servers::Cell(Cell::start(self.binary.path()?, count)?),
            EngineName::Etcd => Servers::Etcd(Etcd::start(count)?),
            EngineName::Zookeeper => Servers::Zookeeper(Zookeeper::start(count)?),
            EngineName::Consul => Servers::Consul(Consul::start()?),
            EngineName::Postgres => Servers::Postgres(Postgres::start()?),
            EngineName::Redis => Servers::Redis(Redis::with(settings)?),
            EngineName::Naive => Servers::Naive(Redis::with(settings)?),
            EngineName::Redlock => {
                let instances = (0..REDLOCK_INSTANCES).map(|number| {
                    if topology == Topology::MovedClock && number == MOVED {
                        Redis::with_moved_clock(settings)
                    } else {
                        Redis::with(settings)
                    }
                });
                Servers::Redlock(instances.collect::<Result<_, _>>()?)
            }
        })
    }
}

/// Names and versions of all servers that are installed.
pub(crate) fn versions() -> Vec<String> {
    let ours = format!("Lockkeeper {}", env!("CARGO_PKG_VERSION"));
    let others =
        [Etcd::version(), Zookeeper::version(), Consul::version(), Postgres::version(), Redis::version()];
    std::iter::once(ours).chain(others.into_iter().flatten()).collect()
}
