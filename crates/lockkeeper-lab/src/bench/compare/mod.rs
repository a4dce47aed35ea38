//! `lockkeeper bench compare`: all engines and their peers side by side, in one run on one machine.
//!
//! It starts the servers itself, one target after the other, so that none disturbs another. Beside our engines on the
//! peers stand the bare recipes on the peers' own clients: nobody can say that our wrapper slowed the peers down.

mod bare_etcd;
mod bare_redis;
mod chart;
mod etcd_wire;
mod failover;
mod keepalive;
mod process;
mod report;
mod site;
mod target;

use std::path::PathBuf;
use std::time::Duration;

pub(super) use bare_etcd::{BareEtcd, EtcdKey};
pub(super) use bare_redis::{CrateRedis, RedisKey};
pub use chart::chart;
pub use failover::FailOver;
pub use keepalive::KeepAliveCost;
pub use report::{Comparison, Figure, Missing, Row, plural};
pub use target::Target;

use self::site::Site;
use super::contender::BenchError;
use super::limits::MachineLimits;
use super::measure::{self, Times};
use super::{Release, WARM_UP, Workload};

/// What the last acquires may take. With one lock for all and a recipe that polls, some never get their turn.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to compare.
#[derive(Debug, Clone)]
pub struct CompareOptions {
    /// This program: it serves the cells.
    pub binary: PathBuf,
    /// Which targets.
    pub targets: Vec<Target>,
    /// How many clients, one figure for each.
    pub clients: Vec<usize>,
    /// How long each figure is measured.
    pub duration: Duration,
    /// Sessions whose keep-alives are measured; 0 leaves that out.
    pub sessions: usize,
    /// How many times a leader is killed; 0 leaves that out.
    pub fail_overs: usize,
    /// The folder in which the servers keep their data: the disk that is measured.
    pub scratch_dir: PathBuf,
}

/// Compares. `progress` is told what is being measured. What cannot be measured is named in the answer.
pub async fn compare(
    options: &CompareOptions,
    mut progress: impl FnMut(&str),
) -> Result<Comparison, BenchError> {
    raise_file_limit();
    let machine = MachineLimits::measure(&options.scratch_dir)?;
    let mut comparison = Comparison::new(machine, options);
    for target in &options.targets {
        progress(&format!("{}: {}", target.name(), target.about()));
        let mut site = match Site::start(*target, &options.binary, &options.scratch_dir).await {
            Ok(site) => site,
            Err(error) => {
                comparison.missing.push(Missing { engine: target.name(), why: error.to_string() });
                continue;
            }
        };
        measure_all(&mut site, options, &mut comparison, &mut progress).await;
    }
    if comparison.rows.is_empty() {
        let why: Vec<&str> = comparison.missing.iter().map(|missing| missing.why.as_str()).collect();
        return Err(BenchError::Server(format!("nothing could be measured: {}", why.join("; "))));
    }
    Ok(comparison)
}

async fn measure_all(
    site: &mut Site,
    options: &CompareOptions,
    comparison: &mut Comparison,
    progress: &mut impl FnMut(&str),
) {
    let name = site.target.name();
    if options.sessions > 0 {
        match keepalive::measure(site, options.sessions).await {
            Ok(cost) => comparison.keep_alives.extend(cost),
            Err(error) => {
                comparison.missing.push(Missing { engine: name, why: format!("keep-alives: {error}") })
            }
        }
    }
    let mut row =
        Row { engine: name, about: site.target.about(), uncontended: Vec::new(), handoff: Vec::new() };
    for workload in [Workload::Uncontended, Workload::Handoff] {
        for &clients in &options.clients {
            progress(&format!("{name}: {}, {clients} clients", workload.name()));
            let figure = match figure(site, workload, clients, options.duration).await {
                Ok(figure) => figure,
                Err(error) => {
                    let why = format!("{}, {clients} clients: {error}", workload.name());
                    comparison.missing.push(Missing { engine: name, why });
                    continue;
                }
            };
            match workload {
                Workload::Uncontended => row.uncontended.push(figure),
                Workload::Handoff => row.handoff.push(figure),
            }
        }
    }
    comparison.rows.push(row);
    if options.fail_overs > 0 {
        match failover::measure(site, options.fail_overs).await {
            Ok(measured) => comparison.fail_overs.extend(measured),
            Err(error) => {
                comparison.missing.push(Missing { engine: name, why: format!("fail-over: {error}") })
            }
        }
    }
}

async fn figure(
    site: &Site,
    workload: Workload,
    clients: usize,
    duration: Duration,
) -> Result<Figure, BenchError> {
    let contenders = site.clients(clients).await?;
    let times = Times { warm_up: WARM_UP.min(duration), duration, patience: PATIENCE };
    let measured = measure::run(contenders, workload, Release::Waited, times, |_, _| {}).await?;
    Ok(Figure::new(clients, &measured))
}

/// 256 clients of three servers each need many connections. What the system does not allow is noticed later.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
