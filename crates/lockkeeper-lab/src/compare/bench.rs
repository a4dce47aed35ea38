//! Measures one figure with `lockkeeper bench`.

use std::process::{Command, Stdio};

use serde::Deserialize;

use super::report::{Figure, MachineLimits};
use super::setup::Setup;
use super::{CompareError, CompareOptions};

/// The workload of the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workload {
    /// Every client has a lock of its own.
    Uncontended,
    /// All clients queue for one lock.
    Handoff,
}

impl Workload {
    /// The name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Workload::Uncontended => "uncontended",
            Workload::Handoff => "handoff",
        }
    }
}

/// The fields of the report of `lockkeeper bench --output json` that a comparison shows.
#[derive(Debug, Deserialize)]
pub(super) struct BenchReport {
    pairs_per_second: f64,
    acquire_p50_us: f64,
    acquire_p99_us: f64,
    pub(super) machine: MachineLimits,
}

impl BenchReport {
    pub(super) fn figure(&self, clients: usize) -> Figure {
        Figure {
            clients,
            pairs_per_second: self.pairs_per_second,
            acquire_p50_us: self.acquire_p50_us,
            acquire_p99_us: self.acquire_p99_us,
        }
    }
}

/// Measures one workload with a number of clients.
pub(super) fn run(
    setup: &Setup,
    workload: Workload,
    clients: usize,
    options: &CompareOptions,
) -> Result<BenchReport, CompareError> {
    let mut command = Command::new(options.binary.path()?);
    command.args(["bench", "--output", "json", "--engine", &setup.url]);
    command.args(["--workload", workload.name(), "--clients", &clients.to_string()]);
    command.args(["--seconds", &options.duration.as_secs_f64().to_string()]);
    command.args(["--recipe", if setup.target.is_bare() { "bare" } else { "library" }]);
    // A table in the client's own process has no connections: all clients share it.
    command.args(["--connections", if setup.target.is_embedded() { "shared" } else { "each" }]);
    command.arg("--scratch-dir").arg(&options.scratch_dir);
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(CompareError::io("failed to start lockkeeper bench"))?;
    if !output.status.success() {
        return Err(CompareError::Bench(last_line(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| CompareError::Bench(error.to_string()))
}

/// The error of the command, which is its last line: lines of progress are before it.
fn last_line(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let error: Option<serde_json::Value> = serde_json::from_str(line).ok();
    let message = error.as_ref().and_then(|error| error["error"]["message"].as_str());
    message.unwrap_or(line).to_owned()
}
