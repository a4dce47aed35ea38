//! Another server takes over.

use std::time::Duration;

use lockkeeper_testkit::redis::Redis;
use lockkeeper_testkit::wire::Wire;

use crate::lab::engine::EngineName;
use crate::lab::error::LabError;
use crate::lab::stage::{Stage, ask, holders_write, rivals_work, take_and_read};
use crate::lab::yard::{Servers, Shape};

const PAIRS: usize = 3;
/// Longer than a fail-over takes, so that a holder whose lock is remembered keeps it.
const TTL: Duration = Duration::from_secs(30);
/// How long a rival may take to be let in by a server that has forgotten the holder.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) fn play(stage: &mut Stage<'_>) -> Result<(), LabError> {
    let let_in = match stage.engine {
        EngineName::Redis | EngineName::Naive => replica_is_promoted(stage)?,
        _ => leader_is_killed(stage)?,
    };
    let count = let_in.iter().filter(|let_in| **let_in).count();
    stage.findings.figure("rival let in early", count as f64, &format!("of {PAIRS}"));
    Ok(())
}

/// The leader of three is killed; the others agree on a new one.
fn leader_is_killed(stage: &mut Stage<'_>) -> Result<Vec<bool>, LabError> {
    let url = stage.servers(Shape::Three)?.url();
    let mut pairs = stage.pairs(PAIRS, (&url, &url), TTL)?;
    take_and_read(&mut pairs)?;
    let killed = match stage.servers(Shape::Three)? {
        Servers::Cell(cell) => cell.kill_leader(),
        Servers::Etcd(etcd) => etcd.kill_leader(),
        Servers::Zookeeper(zookeeper) => zookeeper.kill_leader(),
        _ => return Err(LabError::NotApplicable("it has no leader")),
    };
    if !killed {
        return Err(LabError::NotApplicable("there was no leader to be killed: run it again"));
    }
    stage.record.fault_once("leader killed");
    ask(&mut pairs)?;
    let let_in = rivals_work(&mut pairs, PATIENCE)?;
    holders_write(&mut pairs, &let_in)?;
    // The one that was killed comes back for the next run.
    stage.servers(Shape::Three)?.restart()?;
    Ok(let_in)
}

/// Replication of Redis is asynchronous: the lag that can be there at any time is made certain by stopping the replica's
/// intake before the lock is taken.
fn replica_is_promoted(stage: &mut Stage<'_>) -> Result<Vec<bool>, LabError> {
    let mut primary = Redis::with(lockkeeper_testkit::redis::DURABLE)?;
    let replication = Wire::to(primary.address)?;
    let (host, port) = (replication.address.ip().to_string(), replication.address.port().to_string());
    let replica = Redis::with(&["--replicaof", &format!("{host} {port}")])?;
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !replica.command(&["INFO", "replication"])?.contains("master_link_status:up") {
        if std::time::Instant::now() > until {
            return Err(LabError::NotApplicable(
                "the replica did not get in touch with its primary: run it again",
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // Clients go where the name of the service leads.
    let service = Wire::to(primary.address)?;
    let scheme = if stage.engine == EngineName::Redis { "redis" } else { "naive" };
    let url = format!("{scheme}://{}", service.address);
    let mut pairs = stage.pairs(PAIRS, (&url, &url), TTL)?;
    replication.cut();
    stage.record.fault_once("the replica lags behind");
    take_and_read(&mut pairs)?;
    primary.kill();
    stage.record.fault_once("primary killed");
    replica.command(&["REPLICAOF", "NO", "ONE"])?;
    service.lead_to(replica.address);
    stage.record.fault_once("replica promoted");
    stage.say("the primary is killed, the replica promoted");
    ask(&mut pairs)?;
    let let_in = rivals_work(&mut pairs, PATIENCE)?;
    holders_write(&mut pairs, &let_in)?;
    Ok(let_in)
}
