//! The cost to a server of keeping many sessions alive.

use std::fs;

use futures_util::future::try_join_all;
use lockkeeper_api::v1::{self, answer, operation};
use serde::Serialize;

use super::etcd_leases::EtcdLeases;
use super::link::Link;
use super::setup::{Setup, runtime};
use super::{CompareError, Target};

const TTL_MS: u64 = 60_000;
/// Renewals of each session.
const ROUNDS: usize = 3;
/// Sessions on one connection.
const PER_CONNECTION: usize = 1_000;
/// Sessions per lease of etcd: each lease is a write to its log.
const ETCD_SHARE: usize = 20;
const ETCD_AT_ONCE: usize = 100;

/// The cost of keep-alives.
#[derive(Debug, Clone, Serialize)]
pub struct KeepAliveCost {
    /// Name of the target.
    pub engine: &'static str,
    /// Number of open sessions.
    pub sessions: usize,
    /// CPU time of all its processes for 1,000 keep-alives, in milliseconds.
    pub cpu_ms_per_thousand: f64,
    /// Resident memory of all its processes that each session added, in bytes.
    pub bytes_per_session: f64,
}

/// Opens sessions and renews them. `None` for a target without sessions.
pub(super) fn measure(setup: &Setup, sessions: usize) -> Result<Option<KeepAliveCost>, CompareError> {
    let sessions = match setup.target {
        Target::Cell | Target::Cell3 => sessions,
        Target::EtcdBare => (sessions / ETCD_SHARE).max(1),
        _ => return Ok(None),
    };
    let processes = setup.process_ids();
    let memory_before = resident(&processes)?;
    let (spent, memory) = runtime()?.block_on(async {
        match setup.target {
            Target::EtcdBare => on_etcd(setup, &processes, sessions).await,
            _ => on_cell(setup, &processes, sessions).await,
        }
    })?;
    Ok(Some(KeepAliveCost {
        engine: setup.target.name(),
        sessions,
        cpu_ms_per_thousand: spent * 1_000.0 / (sessions * ROUNDS) as f64 * 1_000.0,
        bytes_per_session: memory.saturating_sub(memory_before) as f64 / sessions as f64,
    }))
}

/// Returns seconds of CPU time, and the memory with all sessions open.
async fn on_cell(setup: &Setup, processes: &[u32], sessions: usize) -> Result<(f64, u64), CompareError> {
    let leader = leader_address(setup).await?;
    let mut links = Vec::new();
    for first in (0..sessions).step_by(PER_CONNECTION) {
        let mut link = Link::connect(&leader).await?;
        let count = PER_CONNECTION.min(sessions - first);
        let open = |number| {
            operation::Kind::OpenSession(v1::OpenSessionRequest {
                ttl_ms: TTL_MS,
                owner: format!("host-{number}/worker"),
            })
        };
        let opened = link.all((first..first + count).map(open).collect()).await?;
        let ids: Vec<String> = opened.into_iter().map(session_of).collect::<Result<_, _>>()?;
        links.push((link, ids));
    }
    let (memory, before) = (resident(processes)?, cpu_seconds(processes)?);
    for _ in 0..ROUNDS {
        for (link, ids) in &mut links {
            // One operation for each session, as if each belonged to another client.
            let renew =
                |id: &String| operation::Kind::KeepAlive(v1::KeepAliveAll { sessions: vec![id.clone()] });
            for answer in link.all(ids.iter().map(renew).collect()).await? {
                match answer {
                    answer::Kind::KeepAlive(renewed) if renewed.ttl_ms == [TTL_MS] => {}
                    other => {
                        return Err(CompareError::Protocol(format!("a session was not renewed: {other:?}")));
                    }
                }
            }
        }
    }
    Ok((cpu_seconds(processes)? - before, memory))
}

fn session_of(answer: answer::Kind) -> Result<String, CompareError> {
    match answer {
        answer::Kind::OpenSession(opened) => Ok(opened.session),
        other => Err(CompareError::Protocol(format!("a session was not opened: {other:?}"))),
    }
}

/// The address of the leader: only the leader opens sessions.
async fn leader_address(setup: &Setup) -> Result<String, CompareError> {
    let keeper = setup.keeper().await?;
    let leader = keeper.status().await?.leader.unwrap_or(0);
    keeper.close().await?;
    let index = usize::try_from(leader).unwrap_or(0).saturating_sub(1);
    let addresses = setup.addresses();
    let address = addresses.get(index).or(addresses.first());
    address.map(ToString::to_string).ok_or_else(|| CompareError::protocol("the cell has no nodes"))
}

async fn on_etcd(setup: &Setup, processes: &[u32], sessions: usize) -> Result<(f64, u64), CompareError> {
    let address = setup.addresses().first().map(ToString::to_string).unwrap_or_default();
    let etcd = EtcdLeases::connect(&address).await?;
    let mut leases = Vec::with_capacity(sessions);
    while leases.len() < sessions {
        let count = ETCD_AT_ONCE.min(sessions - leases.len());
        leases.extend(try_join_all((0..count).map(|_| etcd.open((TTL_MS / 1_000) as i64))).await?);
    }
    let (memory, before) = (resident(processes)?, cpu_seconds(processes)?);
    for _ in 0..ROUNDS {
        let alive = etcd.keep_alive(&leases).await?;
        if alive != sessions {
            return Err(CompareError::Protocol(format!("only {alive} of {sessions} leases are alive")));
        }
    }
    Ok((cpu_seconds(processes)? - before, memory))
}

fn unreadable(error: impl std::fmt::Display) -> CompareError {
    CompareError::Protocol(format!("failed to read the figures of a process from /proc: {error}"))
}

/// Resident memory of the processes, in bytes.
fn resident(processes: &[u32]) -> Result<u64, CompareError> {
    let mut sum = 0;
    for process in processes {
        let text = fs::read_to_string(format!("/proc/{process}/status")).map_err(unreadable)?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        sum += kib.ok_or_else(|| unreadable("no VmRSS"))? * 1_024;
    }
    Ok(sum)
}

/// CPU time of the processes, in seconds.
fn cpu_seconds(processes: &[u32]) -> Result<f64, CompareError> {
    let mut ticks = 0;
    for process in processes {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).map_err(unreadable)?;
        // The name in parentheses may contain spaces; the fields after it are numbered from 3.
        let fields = text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace()).into_iter().flatten();
        let spent: Vec<u64> = fields.skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
        ticks += spent.iter().sum::<u64>();
    }
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}
