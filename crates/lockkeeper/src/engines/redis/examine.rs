//! Checks of `lockkeeper doctor` for the configuration of a Redis.

use std::time::{Duration, UNIX_EPOCH};

use super::session::Instance;
use super::view;
use crate::capabilities::Finding;
use crate::engines::weak_spots::clock_off;
use crate::error::Error;

/// The fields of `INFO`.
pub(crate) async fn info(instance: &Instance) -> Result<Vec<(String, String)>, Error> {
    let text: String = instance.query(&redis::cmd("INFO")).await?;
    Ok(text
        .lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}

/// The value of a field of `INFO`; empty if it is missing.
pub(crate) fn field<'a>(info: &'a [(String, String)], name: &str) -> &'a str {
    info.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
}

/// `is_standalone`: this instance alone decides who holds a lock, so every loss of data matters.
pub(crate) async fn examine(instance: &Instance, is_standalone: bool) -> Result<Vec<Finding>, Error> {
    let address = &instance.address;
    let info = info(instance).await?;
    let mut findings = Vec::new();
    if field(&info, "role") != "master" {
        findings.push(Finding::new(
            "replica",
            format!("Redis at {address} is a replica, which cannot grant locks"),
            "connect to its primary",
        ));
    }
    let replicas: u32 = field(&info, "connected_slaves").parse().unwrap_or(0);
    if replicas > 0 {
        findings.push(Finding::new(
            "asynchronous-replicas",
            format!(
                "Redis at {address} has {replicas} asynchronous replica(s): a fail-over can lose a granted lock, which two \
                 clients then hold at once"
            ),
            "use these locks only for work that can safely be done twice, and fence every write; or use an engine with \
             durable tokens",
        ));
    }
    if field(&info, "cluster_enabled") == "1" {
        findings.push(Finding::new(
            "cluster",
            format!(
                "Redis at {address} is part of a Redis Cluster: locks in the slots of other nodes cannot be acquired"
            ),
            "use a standalone Redis for locks",
        ));
    }
    findings.extend(persistence(instance, &info, is_standalone).await?);
    let policy = field(&info, "maxmemory_policy");
    if field(&info, "maxmemory") != "0" && policy != "noeviction" {
        findings.push(Finding::new(
            "eviction",
            format!("Redis at {address} evicts keys when it is out of memory ({policy}): a held lock can be deleted"),
            "set maxmemory-policy noeviction",
        ));
    }
    let theirs = UNIX_EPOCH + Duration::from_millis(view::now_ms(instance).await?);
    findings.extend(clock_off(&format!("Redis at {address}"), theirs));
    Ok(findings)
}

async fn persistence(
    instance: &Instance,
    info: &[(String, String)],
    is_standalone: bool,
) -> Result<Option<Finding>, Error> {
    let address = &instance.address;
    let config: Result<Vec<String>, Error> =
        instance.query(redis::cmd("CONFIG").arg("GET").arg("appendfsync")).await;
    let fsync = match config {
        Ok(pair) => pair.get(1).cloned().unwrap_or_default(),
        Err(Error::Forbidden(_)) | Err(Error::Unavailable(_)) => {
            return Ok(Some(Finding::new(
                "missing-rights",
                format!(
                    "Redis at {address} does not allow this user to read its configuration: persistence was not checked"
                ),
                "grant the user +config|get, or check appendonly and appendfsync yourself",
            )));
        }
        Err(error) => return Err(error),
    };
    let consequence = if is_standalone {
        "a restart frees locks that are still held, and another client can acquire them"
    } else {
        "after a restart this instance votes again for locks that are still held; if a majority votes twice, a lock is \
         granted twice"
    };
    Ok(match (field(info, "aof_enabled"), fsync.as_str()) {
        ("1", "always") => None,
        ("1", fsync) => Some(Finding::new(
            "loses-the-last-second",
            format!(
                "Redis at {address} syncs its append-only file with appendfsync {fsync}, so a crash can lose the last second of \
                 writes: {consequence}"
            ),
            "set appendfsync always, or keep a crashed instance down for longer than the longest time to live",
        )),
        _ => Some(Finding::new(
            "no-persistence",
            format!("Redis at {address} has no append-only file: {consequence}"),
            "set appendonly yes and appendfsync always, or keep a crashed instance down for longer than the longest time \
             to live",
        )),
    })
}
