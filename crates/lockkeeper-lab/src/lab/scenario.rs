//! The scenarios, and the engines to which each applies.

use std::fmt;

use serde::Serialize;

use super::engine::EngineName;

/// A fault scenario for the holders of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// A holder is paused for longer than its lease.
    Pause,
    /// A holder cannot reach the lock service, but reaches the resource.
    Partition,
    /// The clock of one server is set forward.
    ClockJump,
    /// The server is killed and restarted.
    ServerCrash,
    /// Another server takes over.
    Failover,
    /// A holder releases after its lease.
    WrongRelease,
    /// A pooler shares a session between clients.
    PooledSession,
    /// A thousand clients wait for one lock.
    Herd,
    /// A waiter dies in the queue.
    DeadWaiter,
    /// A set under a lock, with pauses of the holder.
    EtcdSet,
    /// Throughput by hold time.
    LongHold,
    /// One lock for all keys, compared to one for each key.
    Granularity,
}

impl Scenario {
    /// All scenarios, in the order of the matrix.
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
                "A acquires the lock, reads, and is paused by SIGSTOP. Its lease ends; B is granted the lock, reads and \
                 writes. A resumes and writes what follows from its read. Three such pairs at once."
            }
            Scenario::Partition => {
                "A acquires the lock and reads. Its link to the lock service is cut, its link to the resource is not. Its \
                 lease ends; B is granted the lock, reads and writes. A writes without checking its guard."
            }
            Scenario::ClockJump => {
                "A holds a Redlock on three of five instances and is cut off from the other two. The clock of one of the \
                 three is set forward by an hour (libfaketime), so A's lock expires there. B acquires it on that one and \
                 the other two."
            }
            Scenario::ServerCrash => {
                "A acquires the lock and reads. The server is killed and restarted, Redis without persistence. B requests \
                 the lock; if it is granted, B reads and writes. Then A writes."
            }
            Scenario::Failover => {
                "The same, but another server takes over: the leader of three is killed (cell, etcd, ZooKeeper); the \
                 primary of a Redis is killed, and the replica, which has not copied the lock yet, is promoted."
            }
            Scenario::WrongRelease => {
                "A is paused for longer than its lease; B is granted the lock and reads. A resumes and releases. C \
                 requests the lock while B still works. If A's release has ended B's lock, C is granted it too."
            }
            Scenario::PooledSession => {
                "PgBouncer in transaction mode. Control: two clients call pg_try_advisory_lock through it, and the pooler \
                 runs both on one session of the server, for which the lock is re-entrant. In comparison: our engine, \
                 which detects the pooler and refuses, and uses transaction-level locks on request."
            }
            Scenario::Herd => {
                "A thousand clients wait for one lock, on twenty connections. The server's own counters show its work for \
                 each release."
            }
            Scenario::DeadWaiter => {
                "A holds, B waits and is killed in the queue, C waits behind it. A releases. How long until C is granted \
                 the lock?"
            }
            Scenario::EtcdSet => {
                "The test of Jepsen's report on etcd 3.4.3: a set that is read, changed and written back under a lock \
                 with leases of 2 s, by five clients, with a pause of the holder every 5 s. How many acknowledged updates \
                 are lost? Jepsen saw about 18 %."
            }
            Scenario::LongHold => {
                "Eight clients and one lock, held for 0, 1, 10 and 100 ms: the overhead of the lock in addition to the \
                 work."
            }
            Scenario::Granularity => {
                "Eight clients hold for 5 ms: one lock for all, then one for each of eight keys."
            }
        }
    }

    /// Why it does not apply to this engine, if it does not.
    pub fn not_applicable_reason(self, engine: EngineName) -> Option<&'static str> {
        match (self, engine) {
            (Scenario::ClockJump, EngineName::REDLOCK) => None,
            (Scenario::ClockJump, EngineName::CELL) => {
                Some("no wall clock decides anything: leases run on the leader's monotonic clock")
            }
            (Scenario::ClockJump, _) => Some(
                "one server or one leader decides: its clock can end a lease early, but there are no two quorums; see pause",
            ),
            (Scenario::Failover, EngineName::REDLOCK) => {
                Some("there is no leader and no replica; see server-crash")
            }
            (Scenario::Failover, EngineName::CONSUL | EngineName::POSTGRES) => {
                Some("not implemented: the lab starts only one server of it")
            }
            (Scenario::PooledSession, EngineName::POSTGRES) => None,
            (Scenario::PooledSession, _) => Some("there is no pooler between client and server"),
            (Scenario::DeadWaiter, EngineName::NAIVE) => Some("there is no queue: all clients poll"),
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
        let is_volatile = engine == EngineName::REDIS;
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
