//! `lockkeeper-lab compare`: all engines and their peers side by side, in one run on one machine.
//!
//! The servers of one target run at a time, so that none disturbs another. Every figure is a run of `lockkeeper bench`,
//! the shipped binary. The bare recipes on the peers are measured by the same command: no wrapper of ours slows them.

mod bench;
mod chart;
mod error;
mod etcd_leases;
mod failover;
mod keepalive;
mod link;
mod report;
mod setup;
mod table;
mod target;

use std::path::PathBuf;
use std::time::Duration;

pub use chart::chart;
pub use error::CompareError;
pub use failover::FailOver;
pub use keepalive::KeepAliveCost;
pub use link::Link;
pub use report::{Comparison, Figure, MachineLimits, Missing, Row};
pub use table::tables;
pub use target::Target;

use self::bench::Workload;
use self::setup::Setup;
use crate::lockkeeper_binary::LockkeeperBinary;

/// Settings of a comparison.
#[derive(Debug)]
pub struct CompareOptions {
    /// The binary that serves the cells and runs the benchmarks.
    pub binary: LockkeeperBinary,
    /// Targets to measure.
    pub targets: Vec<Target>,
    /// Numbers of clients, one figure for each.
    pub clients: Vec<usize>,
    /// Duration of each figure.
    pub duration: Duration,
    /// Number of sessions whose keep-alives are measured; 0 skips it.
    pub sessions: usize,
    /// Number of times a leader is killed; 0 skips it.
    pub fail_overs: usize,
    /// Folder for the data of the servers. Its disk is measured.
    pub scratch_dir: PathBuf,
}

/// Compares the targets. `progress` receives status messages. The result lists what could not be measured.
///
/// # Errors
///
/// If nothing can be measured.
pub fn compare(options: &CompareOptions, mut progress: impl FnMut(&str)) -> Result<Comparison, CompareError> {
    raise_file_limit();
    lockkeeper_testkit::set_data_folder(&options.scratch_dir);
    let mut comparison = Comparison::new(options);
    for target in &options.targets {
        progress(&format!("{}: {}", target.name(), target.about()));
        match Setup::start(*target, options) {
            Ok(mut setup) => measure_all(&mut setup, options, &mut comparison, &mut progress),
            Err(error) => {
                comparison.missing.push(Missing { engine: target.name(), why: error.to_string() });
            }
        }
    }
    if comparison.rows.is_empty() {
        let why: Vec<&str> = comparison.missing.iter().map(|missing| missing.why.as_str()).collect();
        return Err(CompareError::Nothing(why.join("; ")));
    }
    Ok(comparison)
}

fn measure_all(
    setup: &mut Setup,
    options: &CompareOptions,
    comparison: &mut Comparison,
    progress: &mut impl FnMut(&str),
) {
    let name = setup.target.name();
    let missing = |why: String| Missing { engine: name, why };
    if options.sessions > 0 {
        match keepalive::measure(setup, options.sessions) {
            Ok(cost) => comparison.keep_alives.extend(cost),
            Err(error) => comparison.missing.push(missing(format!("keep-alives: {error}"))),
        }
    }
    let mut row = Row::new(setup.target);
    for workload in [Workload::Uncontended, Workload::Handoff] {
        for &clients in &options.clients {
            progress(&format!("{name}: {}, {clients} clients", workload.name()));
            match bench::run(setup, workload, clients, options) {
                Ok(measured) => {
                    comparison.add_limits(measured.machine);
                    row.add(workload, measured.figure(clients));
                }
                Err(error) => {
                    let why = format!("{}, {clients} clients: {error}", workload.name());
                    comparison.missing.push(missing(why));
                }
            }
        }
    }
    comparison.rows.push(row);
    if options.fail_overs > 0 {
        match failover::measure(setup, options.fail_overs) {
            Ok(measured) => comparison.fail_overs.extend(measured),
            Err(error) => comparison.missing.push(missing(format!("fail-over: {error}"))),
        }
    }
}

/// Raises the limit on open files, for us and our children: 256 clients of three servers each need many connections.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If this fails, connections beyond the limit fail later and are reported.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
