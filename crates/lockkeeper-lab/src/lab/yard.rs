//! The servers that run at the moment. They are kept from one scenario to the next, unless a scenario has broken them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use lockkeeper_testkit::cell::Cell;
use lockkeeper_testkit::consul::Consul;
use lockkeeper_testkit::etcd::Etcd;
use lockkeeper_testkit::postgres::Postgres;
use lockkeeper_testkit::redis::Redis;
use lockkeeper_testkit::zookeeper::Zookeeper;
use lockkeeper_testkit::{ServerError, redis};

use super::engine::EngineName;

/// How the servers of an engine are set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shape {
    /// One, or the five of Redlock.
    Single,
    /// Three members that agree.
    Three,
    /// One that keeps nothing on disk.
    Volatile,
    /// Five Redis, of which the third has a clock that can be moved.
    MovedClock,
}

/// The servers of one engine.
pub(crate) enum Servers {
    Cell(Cell),
    Etcd(Etcd),
    Zookeeper(Zookeeper),
    Consul(Consul),
    Postgres(Postgres),
    Redis(Redis),
    Redlock(Vec<Redis>),
    Naive(Redis),
}

/// Which Redlock instance has the clock that can be moved.
pub(crate) const MOVED: usize = 2;
const REDLOCK_INSTANCES: usize = 5;

/// All that run.
pub(crate) struct Yard {
    binary: PathBuf,
    running: BTreeMap<(EngineName, Shape), Servers>,
}

impl Yard {
    pub(crate) fn new(binary: PathBuf) -> Yard {
        Yard { binary, running: BTreeMap::new() }
    }

    pub(crate) fn binary(&self) -> &std::path::Path {
        &self.binary
    }

    /// The servers, started if they do not run yet.
    pub(crate) fn servers(&mut self, engine: EngineName, shape: Shape) -> Result<&mut Servers, ServerError> {
        if !self.running.contains_key(&(engine, shape)) {
            let servers = self.start(engine, shape)?;
            self.running.insert((engine, shape), servers);
        }
        self.running.get_mut(&(engine, shape)).ok_or(ServerError::Missing {
            program: "the server",
            advice: "this is a mistake of the lab: please report it",
        })
    }

    /// Ends these servers: a scenario has changed them for good.
    pub(crate) fn end(&mut self, engine: EngineName, shape: Shape) {
        self.running.remove(&(engine, shape));
    }

    /// Ends all servers of an engine.
    pub(crate) fn end_all(&mut self, engine: EngineName) {
        self.running.retain(|(running, _), _| *running != engine);
    }

    fn start(&self, engine: EngineName, shape: Shape) -> Result<Servers, ServerError> {
        let count = if shape == Shape::Three { 3 } else { 1 };
        let settings = if shape == Shape::Volatile { &[][..] } else { redis::DURABLE };
        Ok(match engine {
            EngineName::Cell => Servers::Cell(Cell::start(&self.binary, count)?),
            EngineName::Etcd => Servers::Etcd(Etcd::start(count)?),
            EngineName::Zookeeper => Servers::Zookeeper(Zookeeper::start(count)?),
            EngineName::Consul => Servers::Consul(Consul::start()?),
            EngineName::Postgres => Servers::Postgres(Postgres::start()?),
            EngineName::Redis => Servers::Redis(Redis::with(settings)?),
            EngineName::Naive => Servers::Naive(Redis::with(settings)?),
            EngineName::Redlock => {
                let instances = (0..REDLOCK_INSTANCES).map(|number| {
                    if shape == Shape::MovedClock && number == MOVED {
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

impl Servers {
    /// Where clients go.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            Servers::Cell(cell) => cell.addresses(),
            Servers::Etcd(etcd) => etcd.addresses(),
            Servers::Zookeeper(zookeeper) => zookeeper.addresses(),
            Servers::Consul(consul) => vec![consul.address],
            Servers::Postgres(postgres) => vec![postgres.address],
            Servers::Redis(redis) | Servers::Naive(redis) => vec![redis.address],
            Servers::Redlock(instances) => instances.iter().map(|instance| instance.address).collect(),
        }
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(&self.addresses())
    }

    /// The URL if they listened elsewhere: behind wires.
    pub(crate) fn url_at(&self, addresses: &[SocketAddr]) -> String {
        let hosts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let hosts = hosts.join(",");
        match self {
            Servers::Cell(_) => format!("lockkeeper://{hosts}"),
            Servers::Etcd(_) => format!("etcd://{hosts}"),
            Servers::Zookeeper(_) => format!("zookeeper://{hosts}/lab"),
            Servers::Consul(_) => format!("consul://{hosts}"),
            Servers::Postgres(_) => format!("postgres://postgres@{hosts}/postgres"),
            Servers::Redis(_) => format!("redis://{hosts}"),
            // Two cores for everything: 50 ms are too short for a machine that is busy with the lab.
            Servers::Redlock(_) => format!("redlock://{hosts}?timeout_ms=300"),
            Servers::Naive(_) => format!("naive://{hosts}"),
        }
    }

    /// Ends all of them with SIGKILL (PostgreSQL with SIGQUIT, which is its own word for a crash).
    pub(crate) fn kill(&mut self) {
        match self {
            Servers::Cell(cell) => cell.kill(),
            Servers::Etcd(etcd) => etcd.kill(),
            Servers::Zookeeper(zookeeper) => zookeeper.kill(),
            Servers::Consul(consul) => consul.kill(),
            Servers::Postgres(postgres) => postgres.kill(),
            Servers::Redis(redis) | Servers::Naive(redis) => redis.kill(),
            Servers::Redlock(instances) => instances.iter_mut().for_each(Redis::kill),
        }
    }

    /// Starts those that do not run.
    pub(crate) fn restart(&mut self) -> Result<(), ServerError> {
        match self {
            Servers::Cell(cell) => cell.restart(),
            Servers::Etcd(etcd) => etcd.restart(),
            Servers::Zookeeper(zookeeper) => zookeeper.restart(),
            Servers::Consul(consul) => consul.restart(),
            Servers::Postgres(postgres) => postgres.restart(),
            Servers::Redis(redis) | Servers::Naive(redis) => redis.restart(),
            Servers::Redlock(instances) => instances.iter_mut().try_for_each(Redis::restart),
        }
    }

    /// How much of clients they have worked on so far, by their own count, and what it is that they count.
    pub(crate) fn requests(&self) -> Option<(u64, &'static str)> {
        match self {
            Servers::Cell(cell) => Some((cell.requests()?, "requests, by its /metrics")),
            Servers::Etcd(etcd) => Some((etcd.requests()?, "messages, by etcd's metrics")),
            Servers::Zookeeper(zookeeper) => Some((zookeeper.requests()?, "packets, by ZooKeeper's mntr")),
            Servers::Consul(consul) => Some((consul.requests()?, "HTTP requests, by Consul's metrics")),
            Servers::Postgres(postgres) => Some((postgres.requests()?, "transactions, by pg_stat_database")),
            Servers::Redis(redis) | Servers::Naive(redis) => {
                Some((redis.requests()?, "commands, by Redis' INFO"))
            }
            Servers::Redlock(instances) => {
                let sum: Option<u64> = instances.iter().map(Redis::requests).sum();
                Some((sum?, "commands on all five, by Redis' INFO"))
            }
        }
    }
}

/// The versions of all servers that are installed.
pub(crate) fn versions() -> Vec<String> {
    let ours = format!("Lockkeeper {}", env!("CARGO_PKG_VERSION"));
    let others =
        [Etcd::version(), Zookeeper::version(), Consul::version(), Postgres::version(), Redis::version()];
    std::iter::once(ours).chain(others.into_iter().flatten()).collect()
}
