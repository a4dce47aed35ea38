//! One scenario, one file.

mod clock_jump;
mod crowds;
mod dead_waiter;
mod etcd_set;
mod failover;
mod herd;
mod partition;
mod pause;
mod pooled_session;
mod server_crash;
mod wrong_release;

use super::error::LabError;
use super::scenario::Scenario;
use super::stage::Stage;

/// Plays it.
pub(crate) fn play(scenario: Scenario, stage: &mut Stage<'_>) -> Result<(), LabError> {
    match scenario {
        Scenario::Pause => pause::play(stage),
        Scenario::Partition => partition::play(stage),
        Scenario::ClockJump => clock_jump::play(stage),
        Scenario::ServerCrash => server_crash::play(stage),
        Scenario::Failover => failover::play(stage),
        Scenario::WrongRelease => wrong_release::play(stage),
        Scenario::PooledSession => pooled_session::play(stage),
        Scenario::Herd => herd::play(stage),
        Scenario::DeadWaiter => dead_waiter::play(stage),
        Scenario::EtcdSet => etcd_set::play(stage),
        Scenario::LongHold => crowds::long_hold(stage),
        Scenario::Granularity => crowds::granularity(stage),
    }
}
