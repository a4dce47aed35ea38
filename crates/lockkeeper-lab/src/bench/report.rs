//! The figures of a run.

use std::fmt;

use serde::Serialize;

use super::measure::Measured;
use super::{Connections, MachineLimits, Options};

/// What a run has shown.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Where the locks were.
    pub engine: String,
    /// What was done.
    pub workload: &'static str,
    /// How many clients.
    pub clients: usize,
    /// How they were connected.
    pub connections: &'static str,
    /// How locks were given back.
    pub release: &'static str,
    /// How long it was measured.
    pub seconds: f64,
    /// Acquire and release together, for each second. With one lock for all these are the hand-offs.
    pub pairs_per_second: f64,
    /// Half of all acquires took at most this long, in microseconds.
    pub acquire_p50_us: f64,
    /// 99 of 100.
    pub acquire_p99_us: f64,
    /// 999 of 1000.
    pub acquire_p999_us: f64,
    /// The longest.
    pub acquire_max_us: f64,
    /// What the machine can do at best.
    pub machine: MachineLimits,
}

impl Report {
    pub(super) fn new(options: &Options, machine: MachineLimits, measured: &Measured) -> Report {
        let Measured { took, pairs, latencies } = measured;
        let at = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1_000.0;
        Report {
            engine: options.engine.clone(),
            workload: options.workload.name(),
            clients: options.clients,
            connections: match options.connections {
                Connections::Shared => "shared",
                Connections::Each => "each",
            },
            release: options.release.name(),
            seconds: took.as_secs_f64(),
            pairs_per_second: *pairs as f64 / took.as_secs_f64(),
            acquire_p50_us: at(0.5),
            acquire_p99_us: at(0.99),
            acquire_p999_us: at(0.999),
            acquire_max_us: latencies.max() as f64 / 1_000.0,
            machine,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = match self.workload {
            "handoff" => "hand-offs/s",
            _ => "pairs/s",
        };
        writeln!(f, "engine        {}", self.engine)?;
        writeln!(
            f,
            "workload      {}, {} clients, connections {}, releases {}",
            self.workload, self.clients, self.connections, self.release
        )?;
        writeln!(f, "{rate:<13} {:.0}", self.pairs_per_second)?;
        writeln!(
            f,
            "acquire       p50 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, longest {:.0} us",
            self.acquire_p50_us, self.acquire_p99_us, self.acquire_p999_us, self.acquire_max_us
        )?;
        write!(
            f,
            "this machine  append + fdatasync p50 {:.0} us, loopback round trip p50 {:.0} us (together {:.0} us)",
            self.machine.append_fdatasync_p50_us,
            self.machine.loopback_round_trip_p50_us,
            self.machine.durable_answer_us()
        )
    }
}
