//! The running servers, which are kept from one scenario to the next unless a scenario broke them.

use std::collections::BTreeMap;

use lockkeeper_testkit::cell::Cell;
use lockkeeper_testkit::redis::{self, Redis};
use lockkeeper_testkit::{REDLOCK_INSTANCES, SERVERS, ServerError};

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
        let name = engine.name();
        let members = if topology == Topology::Three { 3 } else { 1 };
        match (engine, topology) {
            (EngineName::CELL, _) => Ok(Servers::new(name, Cell::start(self.binary.path()?, members)?)),
            (EngineName::NAIVE | EngineName::REDIS, Topology::Volatile) => {
                Ok(Servers::new(name, Redis::with(&[])?))
            }
            (EngineName::NAIVE, _) => Ok(Servers::new(name, Redis::with(redis::DURABLE)?)),
            (EngineName::REDLOCK, Topology::Volatile) => {
                Ok(Servers::new(name, redis::instances(REDLOCK_INSTANCES, &[])?))
            }
            (EngineName::REDLOCK, Topology::MovedClock) => {
                let mut instances = redis::instances(REDLOCK_INSTANCES, redis::DURABLE)?;
                instances[MOVED] = Redis::with_moved_clock(redis::DURABLE)?;
                Ok(Servers::new(name, instances))
            }
            _ => {
                let kind = SERVERS.iter().find(|kind| kind.engine == name);
                let kind = kind.ok_or(ServerError::Missing {
                    program: name,
                    advice: "the lab cannot start its servers: add them to lockkeeper_testkit::SERVERS",
                })?;
                Ok(Servers::of(name, (kind.start)(members)?))
            }
        }
    }
}

/// Names and versions of all servers that are installed.
pub(crate) fn versions() -> Vec<String> {
    let ours = format!("Lockkeeper {}", env!("CARGO_PKG_VERSION"));
    std::iter::once(ours).chain(SERVERS.iter().filter_map(|kind| (kind.version)())).collect()
}
