//! Findings of `lockkeeper doctor` in unsafe configurations.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use lockkeeper::Finding;
use lockkeeper::prelude::*;
use lockkeeper_testkit::Servers as _;
use lockkeeper_testkit::redis::{DURABLE, Redis as Server};
use lockkeeper_testkit::zookeeper::Zookeeper;

use crate::child::connect;
use crate::servers::Site;
use crate::servers::consul::Consul;
use crate::servers::postgres::Postgres;
use crate::servers::redis::Redis;
use crate::servers::redlock::Redlock;

async fn findings(url: &str) -> Vec<Finding> {
    let (keeper, _) = connect(url).await;
    let findings = keeper.examine().await.unwrap();
    assert!(findings.iter().all(|finding| !finding.what.is_empty() && !finding.advice.is_empty()));
    findings
}

/// The codes of the findings.
pub(crate) async fn codes(url: &str) -> Vec<&'static str> {
    findings(url).await.iter().map(|finding| finding.code).collect()
}

#[tokio::test]
async fn redis_that_evicts_keys_or_syncs_once_a_second() {
    let evicting = [DURABLE, &["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]].concat();
    assert_eq!(codes(&Redis::with(evicting).url()).await, ["eviction"]);
    let everysec = Redis::with(vec!["--appendonly", "yes", "--appendfsync", "everysec"]);
    assert_eq!(codes(&everysec.url()).await, ["loses-the-last-second"]);
}

#[tokio::test]
async fn redis_whose_configuration_is_not_readable() {
    let redis = Redis::start();
    let acl = ["on", ">secret", "~lockkeeper:*", "&lockkeeper:*", "+@all", "-config"];
    redis.command(&[&["ACL", "SETUSER", "keeper"], &acl[..]].concat());
    let url = format!("redis://keeper:secret@{}", redis.address);
    let findings = findings(&url).await;
    assert_eq!(findings.iter().map(|finding| finding.code).collect::<Vec<_>>(), ["missing-rights"]);
    assert!(findings[0].advice.contains("+config|get"), "{findings:?}");
}

#[tokio::test]
async fn redis_with_a_wrong_clock() {
    let redis = Server::with_moved_clock(DURABLE).unwrap();
    let url = format!("redis://{}", redis.address);
    assert_eq!(codes(&url).await, Vec::<&str>::new());
    redis.move_clock(3_600.secs()).unwrap();
    let findings = findings(&url).await;
    assert_eq!(findings.iter().map(|finding| finding.code).collect::<Vec<_>>(), ["clock-off"]);
    assert!(findings[0].what.contains("3599 s") || findings[0].what.contains("3600 s"), "{findings:?}");
}

#[tokio::test]
async fn redlock_with_an_instance_down() {
    let mut site = Redlock::start();
    site.instances[1].kill();
    let findings = findings(&site.url()).await;
    assert_eq!(findings.iter().map(|finding| finding.code).collect::<Vec<_>>(), ["instance-down"]);
    assert!(findings[0].what.contains(&site.instances[1].address.to_string()), "{findings:?}");
}

#[tokio::test]
async fn postgres_without_durable_writes() {
    assert_eq!(codes(&Postgres::start().url()).await, Vec::<&str>::new());
    for setting in ["fsync=off", "synchronous_commit=off"] {
        assert_eq!(
            codes(&Postgres::with_settings("session", &[setting]).url()).await,
            ["no-persistence"],
            "{setting}"
        );
    }
}

#[tokio::test]
async fn zookeeper_with_a_wrong_clock() {
    let zookeeper = Zookeeper::start_ahead(3_600.secs()).unwrap();
    assert_eq!(
        codes(&format!("zookeeper://{}", zookeeper.addresses()[0])).await,
        ["single-node", "clock-off"]
    );
}

/// A fake Consul agent of a cluster of three, with a wrong clock.
fn consul_with_a_wrong_clock() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4_096];
            let length = stream.read(&mut request).unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let (status, body) = match request.split(' ').nth(1) {
                Some("/v1/status/leader") => ("200 OK", "\"127.0.0.1:8300\""),
                Some("/v1/status/peers") => ("200 OK", "[\"a:8300\", \"b:8300\", \"c:8300\"]"),
                _ => ("404 Not Found", ""),
            };
            let head = "Date: Tue, 01 Jan 2019 00:00:00 GMT\r\nConnection: close";
            let answer =
                format!("HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

#[tokio::test]
async fn consul_clock_is_checked() {
    // The clock of a Go program cannot be changed from outside, so the wrong clock is that of a fake.
    assert_eq!(codes(&Consul::start().url()).await, ["single-node"]);
    assert_eq!(codes(&format!("consul://{}", consul_with_a_wrong_clock())).await, ["clock-off"]);
}

#[tokio::test]
async fn redis_without_persistence_or_with_replicas() {
    let safe = Redis::start();
    assert_eq!(codes(&safe.url()).await, Vec::<&str>::new());
    let primary = Redis::with(vec!["--appendonly", "no"]);
    let replica = Redis::with(vec!["--appendonly", "yes", "--appendfsync", "always"]);
    let (host, port) = (primary.address.ip().to_string(), primary.address.port().to_string());
    replica.command(&["REPLICAOF", &host, &port]);
    let until = std::time::Instant::now() + 20.secs();
    while !primary.command(&["INFO", "replication"]).contains("connected_slaves:1") {
        assert!(std::time::Instant::now() < until, "the replica does not connect");
        tokio::time::sleep(20.millis()).await;
    }
    assert_eq!(codes(&primary.url()).await, ["asynchronous-replicas", "no-persistence"]);
    assert!(codes(&replica.url()).await.contains(&"replica"));
}
