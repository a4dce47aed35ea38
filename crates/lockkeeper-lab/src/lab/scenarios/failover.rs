//! Fail-over: another server takes over.

use std::time::Duration;

use lockkeeper_testkit::redis::Redis;
use lockkeeper_testkit::wire::Wire;

use crate::lab::engine::EngineName;
use crate::lab::error::LabError;
use crate::lab::scenario_run::{ScenarioRun, acquire_and_read, request_all, resume_holders, run_rivals};
use crate::lab::server_pool::Topology;
use crate::servers::Servers;

const PAIRS: usize = 3;
/// Longer than a fail-over, so that a holder whose lock survives keeps it.
const TTL: Duration = Duration::from_secs(30);
/// Time limit for the grant of a rival by a server that has forgotten the holder.
const EARLY_GRANT_WITHIN: Duration = Duration::from_secs(3);

pub(super) fn run(run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    let granted = match run.engine {
        EngineName::REDIS | EngineName::NAIVE => replica_is_promoted(run)?,
        _ => leader_is_killed(run)?,
    };
    let count = granted.iter().filter(|granted| **granted).count();
    run.findings.figure("rival granted early", count as f64, &format!("of {PAIRS}"));
    Ok(())
}

/// The leader of three is killed; the others agree on a new one.
fn leader_is_killed(run: &mut ScenarioRun<'_>) -> Result<Vec<bool>, LabError> {
    let url = run.servers(Topology::Three)?.url();
    let mut pairs = run.pairs(PAIRS, (&url, &url), TTL)?;
    acquire_and_read(&mut pairs)?;
    if run.servers(Topology::Three)?.kill_leader().is_none() {
        return Err(LabError::NotApplicable("there was no leader to be killed: run it again"));
    }
    run.events.fault_once("leader killed");
    request_all(&mut pairs)?;
    let granted = run_rivals(&mut pairs, EARLY_GRANT_WITHIN)?;
    resume_holders(&mut pairs, &granted)?;
    // Restarts the killed member for the next run.
    run.servers(Topology::Three)?.restart()?;
    Ok(granted)
}

/// Replication of Redis is asynchronous. The lag, which is possible at any time, is made certain: replication is cut before
/// the lock is acquired.
fn replica_is_promoted(run: &mut ScenarioRun<'_>) -> Result<Vec<bool>, LabError> {
    let redis = Redis::with(lockkeeper_testkit::redis::DURABLE)?;
    let address = redis.address;
    let mut primary = Servers::new(run.engine.name(), redis);
    let replication = Wire::to(address)?;
    let (host, port) = (replication.address.ip().to_string(), replication.address.port().to_string());
    let replica = Redis::with(&["--replicaof", &format!("{host} {port}")])?;
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !replica.command(&["INFO", "replication"])?.contains("master_link_status:up") {
        if std::time::Instant::now() > until {
            return Err(LabError::NotApplicable("the replica did not connect to its primary: run it again"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // Clients connect through a proxy, as through a DNS name of the service.
    let service = Wire::to(address)?;
    let url = primary.url_at(&[service.address]);
    let mut pairs = run.pairs(PAIRS, (&url, &url), TTL)?;
    replication.cut();
    run.events.fault_once("the replica lags behind");
    acquire_and_read(&mut pairs)?;
    primary.kill();
    run.events.fault_once("primary killed");
    replica.command(&["REPLICAOF", "NO", "ONE"])?;
    service.lead_to(replica.address);
    run.events.fault_once("replica promoted");
    run.report_progress("the primary is killed, the replica promoted");
    request_all(&mut pairs)?;
    let granted = run_rivals(&mut pairs, EARLY_GRANT_WITHIN)?;
    resume_holders(&mut pairs, &granted)?;
    Ok(granted)
}
