//! What the doctor finds in set-ups that are not safe.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use lockkeeper::Finding;
use lockkeeper::prelude::*;
use lockkeeper_testkit::redis::{DURABLE, Redis as Server};
use lockkeeper_testkit::zookeeper::Zookeeper;

use crate::child::connect;
use crate::servers::Site;
use crate::servers::consul::Consul;
use crate::servers::postgres::Postgres;
use crate::servers::redis::Redis;
use crate::servers::redlock::Redlock;

async fn found(url: &str) -> Vec<Finding> {
    let (keeper, _) = connect(url).await;
    let findings = keeper.examine().await.unwrap();
    assert!(findings.iter().all(|finding| !finding.what.is_empty() && !finding.advice.is_empty()));
    findings
}

async fn codes(url: &str) -> Vec<&'static str> {
    found(url).await.iter().map(|finding| finding.code).collect()
}

#[tokio::test]
async fn a_redis_that_may_throw_locks_away_or_lose_the_last_of_them() {
    let throws = [DURABLE, &["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]].concat();
    assert_eq!(codes(&Redis::with(throws).url()).await, ["eviction"]);
    let late = Redis::with(vec!["--appendonly", "yes", "--appendfsync", "everysec"]);
    assert_eq!(codes(&late.url()).await, ["loses-the-last-second"]);
}

#[tokio::test]
async fn a_redis_that_does_not_tell_its_settings() {
    let redis = Redis::start();
    let rights = ["on", ">secret", "~lockkeeper:*", "&lockkeeper:*", "+@all", "-config"];
    redis.command(&[&["ACL", "SETUSER", "keeper"], &rights[..]].concat());
    let url = format!("redis://keeper:secret@{}", redis.address);
    let findings = found(&url).await;
    assert_eq!(findings.iter().map(|finding| finding.code).collect::<Vec<_>>(), ["missing-rights"]);
    assert!(findings[0].advice.contains("+config|get"), "{findings:?}");
}

#[tokio::test]
async fn a_redis_whose_clock_is_off() {
    let redis = Server::with_moved_clock(DURABLE).unwrap();
    let url = format!("redis://{}", redis.address);
    assert_eq!(codes(&url).await, Vec::<&str>::new());
    redis.move_clock(3_600.secs()).unwrap();
    let findings = found(&url).await;
    assert_eq!(findings.iter().map(|finding| finding.code).collect::<Vec<_>>(), ["clock-off"]);
    assert!(findings[0].what.contains("3599 s") || findings[0].what.contains("3600 s"), "{findings:?}");
}

#[tokio::test]
async fn an_instance_of_redlock_that_is_down() {
    let mut site = Redlock::start();
    site.instances[1].kill();
    let findings = found(&site.url()).await;
    assert_eq!(findings.iter().map(|finding| finding.code).collect::<Vec<_>>(), ["instance-down"]);
    assert!(findings[0].what.contains(&site.instances[1].address.to_string()), "{findings:?}");
}

#[tokio::test]
async fn a_postgres_that_answers_before_it_has_written() {
    assert_eq!(codes(&Postgres::start().url()).await, Vec::<&str>::new());
    for setting in ["fsync=off", "synchronous_commit=off"] {
        assert_eq!(codes(&Postgres::set("session", &[setting]).url()).await, ["no-persistence"], "{setting}");
    }
}

#[tokio::test]
async fn a_zookeeper_whose_clock_is_off() {
    let zookeeper = Zookeeper::start_ahead(3_600.secs()).unwrap();
    assert_eq!(
        codes(&format!("zookeeper://{}", zookeeper.addresses()[0])).await,
        ["single-node", "clock-off"]
    );
}

/// An agent of three servers that is as Consul but for its clock.
fn consul_of_another_time() -> SocketAddr {
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
async fn a_consul_whose_clock_is_off() {
    // A program in Go cannot be given another clock: one that is right, and one that only speaks like it.
    assert_eq!(codes(&Consul::start().url()).await, ["single-node"]);
    assert_eq!(codes(&format!("consul://{}", consul_of_another_time())).await, ["clock-off"]);
}
