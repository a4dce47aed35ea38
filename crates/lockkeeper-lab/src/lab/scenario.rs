//! The scenarios, and the engines to which each applies.

use std::fmt;

use serde::Serialize;

use super::engine::EngineName;

/// A scenario: what happens to the holders of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// A holder is stopped for longer than its lease.
    Pause,
    /// A holder cannot reach the lock service, but reaches the resource.
    Partition,
    /// The clock of one server is set forward.
    ClockJump,
    /// The server is killed and started again.
    ServerCrash,
    /// Another server takes over.
    Failover,
    /// A holder releases after its lease.
    WrongRelease,
    /// A pooler hands the session to somebody else.
    PooledSession,
    /// A thousand wait for one lock.
    Herd,
    /// A waiter dies in the queue.
    DeadWaiter,
    /// A set under a lock, with pauses.
    EtcdSet,
    /// Throughput against the time that a lock is held.
    LongHold,
    /// One lock for all against one for each key.
    Granularity,
}

impl Scenario {
    /// All, in the order of the matrix.
    pub const ALL: [Scenario; 12] = [
        Scenario::Pause,
        Scenario::Partition,
        Scenario::ClockJump,
        Scenario::ServerCrash,
        Scenario::Failover,
        Scenario::WrongRelease,
        Scenario::PooledSession,
        Scenario::Herd,
        Scenario::DeadWaiter,
        Scenario::EtcdSet,
        Scenario::LongHold,
        Scenario::Granularity,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Pause => "pause",
            Scenario::Partition => "partition",
            Scenario::ClockJump => "clock-jump",
            Scenario::ServerCrash => "server-crash",
            Scenario::Failover => "failover",
            Scenario::WrongRelease => "wrong-release",
            Scenario::PooledSession => "pooled-session",
            Scenario::Herd => "herd",
            Scenario::DeadWaiter => "dead-waiter",
            Scenario::EtcdSet => "etcd-set",
            Scenario::LongHold => "long-hold",
            Scenario::Granularity => "granularity",
        }
    }

    /// Finds a scenario by its name.
    pub fn parse(text: &str) -> Option<Scenario> {
        Scenario::ALL.into_iter().find(|scenario| scenario.name() == text)
    }

    /// Describes it in a few sentences.
    pub fn description(self) -> &'static str {
        match self {
            Scenario::Pause => {
                "A takes the lock, reads, and is stopped by SIGSTOP. Its lease ends, B is let in, reads and writes. A goes on \
                 and writes what follows from what it had read. Three such pairs at once."
            }
            Scenario::Partition => {
                "A takes the lock and reads. Its way to the lock service is cut, that to the resource is not. Its lease ends, B \
                 is let in, reads and writes. A, which did not look at its guard, writes."
            }
            Scenario::ClockJump => {
                "A holds a Redlock on three of five instances, the other two being cut off from it. The clock of one of the \
                 three is set forward by an hour (libfaketime): it forgets A. B takes it on that one and the other two."
            }
            Scenario::ServerCrash => {
                "A takes the lock and reads. The server is killed and started again, Redis without anything on disk. B asks; if \
                 it is let in, it reads and writes. Then A writes."
            }
            Scenario::Failover => {
                "The same, but another server takes over: the leader of three is killed (cell, etcd, ZooKeeper); the primary \
                 of a Redis is killed, and the replica, which had not yet copied the lock, is promoted."
            }
            Scenario::WrongRelease => {
                "A is stopped for longer than its lease, B is let in and reads. A goes on and releases. C asks while B is still \
                 at work. If A's release has ended B's lock, C is let in too."
            }
            Scenario::PooledSession => {
                "PgBouncer in transaction mode. Control: two clients call pg_try_advisory_lock through it, and the pooler runs \
                 both on one session of the server, for which the lock is re-entrant. Against it: our engine, which finds the \
                 pooler out and refuses, and takes the lock at transaction level if told so."
            }
            Scenario::Herd => {
                "A thousand wait for one lock, on twenty connections. Counted by the server itself: what it has to do for each \
                 release."
            }
            Scenario::DeadWaiter => {
                "A holds, B waits and is killed in the queue, C waits behind it. A releases. How long until C is let in?"
            }
            Scenario::EtcdSet => {
                "The test of Jepsen's report on etcd 3.4.3: a set that is read, changed and written back under a lock with leases \
                 of 2 s, by five clients, with a pause of whoever holds every 5 s. How many acknowledged updates are lost? \
                 Jepsen saw about 18 %."
            }
            Scenario::LongHold => {
                "Eight clients and one lock, held for 0, 1, 10 and 100 ms: what the lock costs beside the work."
            }
            Scenario::Granularity => {
                "Eight clients hold for 5 ms: one lock for all, then one for each key of eight."
            }
        }
    }

    /// Why it does not apply to this engine, if it does not.
    pub fn not_applicable_reason(self, engine: EngineName) -> Option<&'static str> {
        use EngineName::{Cell, Consul, Etcd, Naive, Postgres, Redis, Redlock, Zookeeper};
        match (self, engine) {
            (Scenario::ClockJump, Redlock) => None,
            (Scenario::ClockJump, Cell) => {
                Some("no wall clock decides anything: leases run on the leader's monotonic clock")
            }
            (Scenario::ClockJump, Etcd | Zookeeper | Consul | Postgres | Redis | Naive) => Some(
                "one server or one leader decides: its clock can end a lease early, but there are no two quorums; see pause",
            ),
            (Scenario::Failover, Redlock) => Some("there is no leader and no replica; see server-crash"),
            (Scenario::Failover, Consul | Postgres) => Some("not built: the lab starts one server of it"),
            (Scenario::PooledSession, Postgres) => None,
            (Scenario::PooledSession, _) => Some("there is no pooler between client and server"),
            (Scenario::DeadWaiter, Naive) => Some("there is no queue: everybody polls"),
            _ => None,
        }
    }

    /// Whether a gate makes a difference. Scenarios that only count or measure run once.
    pub fn has_gate(self) -> bool {
        !matches!(self, Scenario::Herd | Scenario::DeadWaiter | Scenario::LongHold | Scenario::Granularity)
    }

    /// Whether a fenced run must not lose updates, by the promises of the engine.
    pub fn must_not_lose(self, engine: EngineName) -> bool {
        // The tokens of Redis do not survive the loss of the server: the result is reported, not promised.
        let is_volatile = engine == EngineName::Redis;
        !(is_volatile && matches!(self, Scenario::ServerCrash | Scenario::Failover))
    }

    /// Whether an unfenced run must lose updates: otherwise it proves nothing.
    pub fn must_lose(self) -> bool {
        matches!(self, Scenario::Pause | Scenario::Partition)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
