//! Real servers as child processes, for tests, the lab and comparisons.
//!
//! - [`cell`], [`redis`], [`etcd`], [`zookeeper`], [`consul`], [`postgres`] and [`pgbouncer`] start servers on separate loopback
//!   addresses, with data in a temporary folder. They can be killed and restarted with their data, and report their leader and
//!   the number of requests that they processed. A server ends when its value is dropped, or when the thread that started it
//!   ends in any way.
//! - [`Servers`] is what they have in common, and [`SERVERS`] the list of those that the lab starts by the name of the engine.
//! - [`wire`] is a TCP proxy between clients and a server that can be cut, healed and redirected.
//! - [`MovedClock`] moves the wall clock of one process.
//! - [`Tuning`] chooses between short timeouts for tests and the defaults of the server's package for measurements.
//! - [`http`] queries the status pages of a server, [`connections_to`] counts connections by the kernel's tables.
//!
//! A server that is not installed is a [`ServerError::Missing`], which names the package that contains it. The crate does not
//! depend on the library, so that tests of the library can use it.

mod address;
pub mod cell;
mod clock;
pub mod consul;
mod error;
pub mod etcd;
pub mod http;
pub mod pgbouncer;
pub mod postgres;
mod process;
pub mod redis;
mod servers;
mod sockets;
mod tuning;
pub mod wire;
pub mod zookeeper;

pub use address::free_address;
pub use clock::MovedClock;
pub use error::ServerError;
pub use process::{Process, Program, child_command, find_program, set_data_folder};
pub use rustix::process::Signal;
pub use servers::{ServerKind, Servers};
pub use sockets::connections_to;
pub use tuning::Tuning;

/// The number of instances of Redlock.
pub const REDLOCK_INSTANCES: usize = 5;

/// The servers of all engines but the cell, which needs the path of its binary.
pub const SERVERS: &[ServerKind] = &[
    ServerKind {
        engine: "redis",
        start: |_| Ok(Box::new(redis::Redis::with(redis::DURABLE)?)),
        version: redis::Redis::version,
    },
    ServerKind {
        engine: "redlock",
        start: |_| Ok(Box::new(redis::instances(REDLOCK_INSTANCES, redis::DURABLE)?)),
        // Its program is that of the engine redis.
        version: || None,
    },
    ServerKind {
        engine: "etcd",
        start: |members| Ok(Box::new(etcd::Etcd::start(members)?)),
        version: etcd::Etcd::version,
    },
    ServerKind {
        engine: "zookeeper",
        start: |members| Ok(Box::new(zookeeper::Zookeeper::start(members)?)),
        version: zookeeper::Zookeeper::version,
    },
    ServerKind {
        engine: "consul",
        start: |_| Ok(Box::new(consul::Consul::start()?)),
        version: consul::Consul::version,
    },
    ServerKind {
        engine: "postgres",
        start: |_| Ok(Box::new(postgres::Postgres::start()?)),
        version: postgres::Postgres::version,
    },
];
