//! The scenarios, one file each.

mod clock_jump;
mod dead_waiter;
mod etcd_set;
mod failover;
mod herd;
mod partition;
mod pause;
mod pooled_session;
mod server_crash;
mod throughput;
mod wrong_release;

use super::error::LabError;
use super::scenario::Scenario;
use super::scenario_run::ScenarioRun;

/// Runs a scenario.
pub(crate) fn run(scenario: Scenario, run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    match scenario {
        Scenario::Pause => pause::run(run),
        Scenario::Partition => partition::run(run),
        Scenario::ClockJump => clock_jump::run(run),
        Scenario::ServerCrash => server_crash::run(run),
        Scenario::Failover => failover::run(run),
        Scenario::WrongRelease => wrong_release::run(run),
        Scenario::PooledSession => pooled_session::run(run),
        Scenario::Herd => herd::run(run),
        Scenario::DeadWaiter => dead_waiter::run(run),
        Scenario::EtcdSet => etcd_set::run(run),
        Scenario::LongHold => throughput::long_hold(run),
        Scenario::Granularity => throughput::granularity(run),
    }
}
