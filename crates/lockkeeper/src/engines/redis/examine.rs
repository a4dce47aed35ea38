//! What is not as safe as it could be in the set-up of a Redis.

use std::time::{Duration, UNIX_EPOCH};

use super::session::Instance;
use super::view;
use crate::capabilities::Finding;
use crate::engines::weak_spots::clock_off;
use crate::error::Error;

/// The facts that Redis tells about itself.
pub(crate) async fn info(instance: &Instance) -> Result<Vec<(String, String)>, Error> {
    let text: String = instance.ask(&redis::cmd("INFO")).await?;
    Ok(text
        .lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}

pub(crate) fn fact<'a>(info: &'a [(String, String)], name: &str) -> &'a str {
    info.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
}

/// `alone`: this instance decides by itself, so what it forgets matters.
pub(crate) async fn examine(instance: &Instance, alone: bool) -> Result<Vec<Finding>, Error> {
    let address = &instance.address;
    let info = info(instance).await?;
    let mut findings = Vec::new();
    if fact(&info, "role") != "master" {
        findings.push(Finding::new(
            "replica",
            format!("Redis at {address} is a replica: it takes no locks"),
            "name its primary",
        ));
    }
    let replicas: u32 = fact(&info, "connected_slaves").parse().unwrap_or(0);
    if replicas > 0 {
        findings.push(Finding::new(
            "asynchronous-replicas",
            format!(
                "Redis at {address} has {replicas} replica(s), which follow it with a delay: after a fail-over a lock that \
                 was granted is forgotten, and two hold it"
            ),
            "use these locks only where doing the work twice does no harm, and fence every write; or use an engine with \
             durable tokens",
        ));
    }
    if fact(&info, "cluster_enabled") == "1" {
        findings.push(Finding::new(
            "cluster",
            format!(
                "Redis at {address} is part of a cluster: locks on other slots cannot be reached from here"
            ),
            "use a Redis of its own for locks",
        ));
    }
    findings.extend(persistence(instance, &info, alone).await?);
    let policy = fact(&info, "maxmemory_policy");
    if fact(&info, "maxmemory") != "0" && policy != "noeviction" {
        findings.push(Finding::new(
            "eviction",
            format!("Redis at {address} throws keys away when memory is short ({policy}): a lock can vanish"),
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
    alone: bool,
) -> Result<Option<Finding>, Error> {
    let address = &instance.address;
    let config: Result<Vec<String>, Error> =
        instance.ask(redis::cmd("CONFIG").arg("GET").arg("appendfsync")).await;
    let fsync = match config {
        Ok(pair) => pair.get(1).cloned().unwrap_or_default(),
        Err(Error::Forbidden(_)) | Err(Error::Unavailable(_)) => {
            return Ok(Some(Finding::new(
                "missing-rights",
                format!(
                    "Redis at {address} does not tell its configuration: persistence cannot be looked at"
                ),
                "allow the user +config|get, or look at appendonly and appendfsync yourself",
            )));
        }
        Err(error) => return Err(error),
    };
    let after = if alone {
        "after a restart all locks are free, and two hold what one held before"
    } else {
        "after a restart this instance votes again for locks that are still held; with two of them a lock can be granted twice"
    };
    Ok(match (fact(info, "aof_enabled"), fsync.as_str()) {
        ("1", "always") => None,
        ("1", fsync) => Some(Finding::new(
            "loses-the-last-second",
            format!(
                "Redis at {address} writes its log to disk {fsync}: {after}, for locks of the last second"
            ),
            "set appendfsync always, or do not restart it for longer than the longest time to live",
        )),
        _ => Some(Finding::new(
            "no-persistence",
            format!("Redis at {address} keeps no log on disk: {after}"),
            "set appendonly yes and appendfsync always, or do not restart it for longer than the longest time to live",
        )),
    })
}
