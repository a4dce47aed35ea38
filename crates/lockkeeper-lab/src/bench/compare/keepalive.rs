//! What it costs a server to keep many sessions alive.

use std::fs;

use futures_util::future::try_join_all;
use lockkeeper_api::v1::{self, answer, operation};
use serde::Serialize;

use super::super::contender::BenchError;
use super::super::link::Link;
use super::bare_etcd::BareEtcd;
use super::process::Process;
use super::site::Site;
use super::target::Target;

const TTL_MS: u64 = 60_000;
/// Each session is renewed so many times.
const ROUNDS: usize = 3;
/// Sessions on one connection.
const PER_CONNECTION: usize = 1_000;
/// Each lease of etcd costs it a write to its log, so there are fewer.
const ETCD_SHARE: usize = 20;
const ETCD_AT_ONCE: usize = 100;

/// The bill.
#[derive(Debug, Clone, Serialize)]
pub struct KeepAliveCost {
    /// Which target.
    pub engine: &'static str,
    /// How many sessions were open.
    pub sessions: usize,
    /// Processor time of all its processes, in milliseconds, for each 1,000 keep-alives.
    pub cpu_ms_per_thousand: f64,
    /// Resident memory of all its processes that each session has added, in bytes.
    pub bytes_per_session: f64,
}

/// Opens sessions and renews them. `None` where there is nothing to compare.
pub(super) async fn measure(site: &Site, sessions: usize) -> Result<Option<KeepAliveCost>, BenchError> {
    let (sessions, memory_before) = match site.target {
        Target::Cell | Target::Cell3 => (sessions, resident(&site.processes)?),
        Target::EtcdBare => ((sessions / ETCD_SHARE).max(1), resident(&site.processes)?),
        _ => return Ok(None),
    };
    let (spent, memory) = match site.target {
        Target::EtcdBare => on_etcd(site, sessions).await?,
        _ => on_cell(site, sessions).await?,
    };
    Ok(Some(KeepAliveCost {
        engine: site.target.name(),
        sessions,
        cpu_ms_per_thousand: spent * 1_000.0 / (sessions * ROUNDS) as f64 * 1_000.0,
        bytes_per_session: memory.saturating_sub(memory_before) as f64 / sessions as f64,
    }))
}

/// Seconds of processor time, and memory with all sessions open.
async fn on_cell(site: &Site, sessions: usize) -> Result<(f64, u64), BenchError> {
    let leader = leading_address(site).await?;
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
    let (memory, before) = (resident(&site.processes)?, processor_time(&site.processes)?);
    for _ in 0..ROUNDS {
        for (link, ids) in &mut links {
            // One operation for each session, as if each belonged to another client.
            let renew =
                |id: &String| operation::Kind::KeepAlive(v1::KeepAliveAll { sessions: vec![id.clone()] });
            for answer in link.all(ids.iter().map(renew).collect()).await? {
                match answer {
                    answer::Kind::KeepAlive(renewed) if renewed.ttl_ms == [TTL_MS] => {}
                    other => return Err(BenchError::Server(format!("a session was not renewed: {other:?}"))),
                }
            }
        }
    }
    Ok((processor_time(&site.processes)? - before, memory))
}

fn session_of(answer: answer::Kind) -> Result<String, BenchError> {
    match answer {
        answer::Kind::OpenSession(opened) => Ok(opened.session),
        other => Err(BenchError::Server(format!("a session was not opened: {other:?}"))),
    }
}

/// Only the leader opens sessions.
async fn leading_address(site: &Site) -> Result<String, BenchError> {
    let keeper = site.keeper().await?;
    let leader = keeper.status().await?.leader;
    keeper.close().await?;
    let index = usize::try_from(leader).unwrap_or(0).saturating_sub(1);
    let address = site.addresses.get(index).or(site.addresses.first());
    address.cloned().ok_or_else(|| BenchError::Server("the cell has no nodes".to_owned()))
}

async fn on_etcd(site: &Site, sessions: usize) -> Result<(f64, u64), BenchError> {
    let etcd = BareEtcd::connect(&site.addresses[0]).await?;
    let mut leases = Vec::with_capacity(sessions);
    while leases.len() < sessions {
        let count = ETCD_AT_ONCE.min(sessions - leases.len());
        leases.extend(try_join_all((0..count).map(|_| etcd.open_lease((TTL_MS / 1_000) as i64))).await?);
    }
    let (memory, before) = (resident(&site.processes)?, processor_time(&site.processes)?);
    for _ in 0..ROUNDS {
        let alive = etcd.keep_alive(leases.clone()).await?;
        if alive != sessions {
            return Err(BenchError::Etcd(format!("only {alive} of {sessions} leases are alive")));
        }
    }
    Ok((processor_time(&site.processes)? - before, memory))
}

fn unreadable(error: impl std::fmt::Display) -> BenchError {
    BenchError::Server(format!("the figures of a process cannot be read from /proc: {error}"))
}

/// Bytes that the processes have in memory.
fn resident(processes: &[Process]) -> Result<u64, BenchError> {
    let mut sum = 0;
    for process in processes {
        let text = fs::read_to_string(format!("/proc/{}/status", process.id())).map_err(unreadable)?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        sum += kib.ok_or_else(|| unreadable("no VmRSS"))? * 1_024;
    }
    Ok(sum)
}

/// Seconds of processor time that the processes have spent.
fn processor_time(processes: &[Process]) -> Result<f64, BenchError> {
    let mut ticks = 0;
    for process in processes {
        let text = fs::read_to_string(format!("/proc/{}/stat", process.id())).map_err(unreadable)?;
        // The name in brackets may have spaces in it; the fields behind it are numbered from 3.
        let fields = text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace()).into_iter().flatten();
        let spent: Vec<u64> = fields.skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
        ticks += spent.iter().sum::<u64>();
    }
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}
