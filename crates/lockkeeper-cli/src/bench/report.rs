//! The report of a run.

use std::fmt;

use serde::Serialize;

use super::limits::MachineLimits;
use super::measure::Measured;
use super::{Connections, Options, Recipe, Release, Workload};

/// Figures of a run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    engine: String,
    recipe: Recipe,
    workload: Workload,
    clients: usize,
    connections: Connections,
    release: Release,
    seconds: f64,
    /// Acquire and release together. With one lock for all these are the hand-offs.
    pairs_per_second: f64,
    acquire_p50_us: f64,
    acquire_p99_us: f64,
    acquire_p999_us: f64,
    acquire_max_us: f64,
    /// Limits of the machine, for comparison.
    machine: MachineLimits,
}

impl Report {
    pub(super) fn new(options: &Options, machine: MachineLimits, measured: &Measured) -> Report {
        let Measured { took, pairs, latencies } = measured;
        let at = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1_000.0;
        Report {
            engine: options.engine.clone(),
            recipe: options.recipe,
            workload: options.workload,
            clients: options.clients,
            connections: options.connections,
            release: options.release,
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

/// The name of a value on the command line.
fn name(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = match self.workload {
            Workload::Handoff => "hand-offs/s",
            Workload::Uncontended => "pairs/s",
        };
        writeln!(f, "engine        {} ({} recipe)", self.engine, name(&self.recipe))?;
        writeln!(
            f,
            "workload      {}, {} clients, connections {}, releases {}",
            name(&self.workload),
            self.clients,
            name(&self.connections),
            name(&self.release)
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
