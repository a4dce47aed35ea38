//! The servers of one engine.

use std::net::SocketAddr;
use std::time::Instant;

use lockkeeper_testkit::ServerError;
use lockkeeper_testkit::cell::Cell;
use lockkeeper_testkit::consul::Consul;
use lockkeeper_testkit::etcd::Etcd;
use lockkeeper_testkit::postgres::Postgres;
use lockkeeper_testkit::redis::Redis;
use lockkeeper_testkit::zookeeper::Zookeeper;

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

impl Servers {
    /// The addresses for clients.
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

    /// Kills the leader with SIGKILL and returns the time of the kill; `None` without a leader.
    pub(crate) fn kill_leader(&mut self) -> Option<Instant> {
        match self {
            Servers::Cell(cell) => cell.kill_leader(),
            Servers::Etcd(etcd) => etcd.kill_leader(),
            Servers::Zookeeper(zookeeper) => zookeeper.kill_leader(),
            _ => None,
        }
    }

    /// The ids of the processes, where they are measured.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        match self {
            Servers::Cell(cell) => cell.process_ids(),
            Servers::Etcd(etcd) => etcd.process_ids(),
            _ => Vec::new(),
        }
    }

    /// The URL of the servers behind proxies at these addresses.
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
            // The default of 50 ms is too short for a machine that also runs the lab.
            Servers::Redlock(_) => format!("redlock://{hosts}?timeout_ms=300"),
            Servers::Naive(_) => format!("naive://{hosts}"),
        }
    }

    /// Kills all of them with SIGKILL (PostgreSQL with SIGQUIT, its immediate shutdown).
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

    /// Starts the servers that do not run.
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

    /// Number of client requests by the servers' own counters, and the unit of the counter.
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
