//! Errors of connecting: unreachable servers, wrong kinds of servers, missing passwords and missing permissions.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use lockkeeper::prelude::*;

use crate::child::connect;
use crate::servers::consul::Consul;
use crate::servers::etcd::Etcd;
use crate::servers::postgres::Postgres;
use crate::servers::redis::Redis;
use crate::servers::zookeeper::Zookeeper;
use crate::servers::{Site, free_address};
use crate::support::soon;

pub(crate) async fn error_names_the_address_of_an_unreachable_or_wrong_server<S: Site>() {
    let site = S::start();
    let unused: Vec<_> = site.addresses().iter().map(|_| free_address()).collect();
    let builder = || Keeper::builder().connect_timeout(600.millis()).request_timeout(600.millis());
    let started = Instant::now();
    let error = builder().connect_unfenced(&site.url_at(&unused)).await.unwrap_err();
    assert_eq!(error.code(), "unavailable", "{error}");
    assert!(unused.iter().any(|address| error.to_string().contains(&address.to_string())), "{error}");
    assert!(started.elapsed() < 10.secs());

    // Servers that speak another protocol.
    let listeners: Vec<TcpListener> =
        site.addresses().iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    for listener in listeners {
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                use std::io::Write;
                let Ok(mut stream) = stream else { return };
                let _ = stream.write_all(b"SSH-2.0-something-else\r\nhello\r\n");
                std::thread::sleep(Duration::from_millis(50));
            }
        });
    }
    let started = Instant::now();
    let error = builder().connect_unfenced(&site.url_at(&addresses)).await.unwrap_err();
    assert!(["unavailable", "invalid"].contains(&error.code()), "{error}");
    assert!(addresses.iter().any(|address| error.to_string().contains(&address.to_string())), "{error}");
    assert!(started.elapsed() < 10.secs());
}

async fn connect_error(url: &str) -> Error {
    let builder = Keeper::builder().connect_timeout(2.secs()).request_timeout(2.secs());
    soon(builder.connect_unfenced(url)).await.unwrap_err()
}

#[tokio::test]
async fn postgres_accepts_only_the_right_password() {
    let mut postgres = Postgres::start();
    postgres.query("CREATE ROLE keeper LOGIN PASSWORD 'secret'");
    postgres.query("CREATE SCHEMA lockkeeper AUTHORIZATION keeper");
    postgres.restart_with_hba("host all keeper all scram-sha-256\nhost all postgres all trust\n");
    let url = |login: &str| format!("postgres://{login}@{}/postgres", postgres.address);
    let missing = connect_error(&url("keeper")).await;
    let wrong = connect_error(&url("keeper:wrong")).await;
    for error in [&missing, &wrong] {
        assert_eq!(error.code(), "unauthenticated", "{error}");
        assert!(error.to_string().contains("postgres://user:password@"), "{error}");
        assert!(!error.to_string().contains("wrong@"), "the error contains the password: {error}");
    }
    assert!(missing.to_string().contains("requires a password"), "{missing}");
    assert!(wrong.to_string().contains("password authentication failed"), "{wrong}");
    // A user without a rule is rejected.
    let stranger = connect_error(&url("stranger")).await;
    assert_eq!(stranger.code(), "unauthenticated", "{stranger}");
    let keeper = Keeper::connect(&url("keeper:secret")).await.unwrap();
    soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn redlock_sends_the_password_to_all_instances() {
    let instances: Vec<Redis> = (0..3).map(|_| Redis::with(vec!["--requirepass", "secret"])).collect();
    let hosts: Vec<String> = instances.iter().map(|instance| instance.address.to_string()).collect();
    let url = |login: &str| format!("redlock://{login}{}?timeout_ms=300", hosts.join(","));
    for login in ["", ":wrong@"] {
        let error = connect_error(&url(login)).await;
        assert_eq!(error.code(), "unauthenticated", "{error}");
        assert!(error.to_string().contains("password@"), "{error}");
    }
    let (keeper, _) = connect(&url(":secret@")).await;
    let guard = soon(keeper.lock("a").ttl(30.secs()).acquire()).await.unwrap();
    assert!(soon(keeper.lock("a").try_acquire()).await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn redis_errors_name_the_missing_permissions_and_the_replica() {
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "guest", "on", ">secret", "~other:*", "+@all"]);
    let (keeper, _) = connect(&format!("redis://guest:secret@{}", redis.address)).await;
    let error = soon(keeper.lock("a").acquire()).await.unwrap_err();
    assert_eq!(error.code(), "forbidden", "{error}");
    assert!(error.to_string().contains("lockkeeper:*"), "{error}");

    let replica = Redis::start();
    let (host, port) = (redis.address.ip().to_string(), redis.address.port().to_string());
    replica.command(&["REPLICAOF", &host, &port]);
    let keeper = Keeper::builder().request_timeout(1.secs()).connect_unfenced(&replica.url()).await.unwrap();
    let error = soon(keeper.lock("a").no_wait().acquire()).await.unwrap_err();
    assert_eq!(error.code(), "unavailable", "{error}");
    assert!(error.to_string().contains("replica") && error.to_string().contains("primary"), "{error}");
}

/// Connects to each server with the scheme of each other engine: the error names the expected server and the address.
#[tokio::test]
async fn server_of_another_engine_is_rejected() {
    let (redis, postgres, etcd) = (Redis::start(), Postgres::start(), Etcd::start());
    let (zookeeper, consul) = (Zookeeper::start(), Consul::start());
    let servers = [
        ("redis", "Redis", redis.address),
        ("postgres", "PostgreSQL", postgres.address),
        ("etcd", "etcd", etcd.address),
        ("zookeeper", "ZooKeeper", zookeeper.address),
        ("consul", "Consul", consul.address),
    ];
    let mut attempts = tokio::task::JoinSet::new();
    for (scheme, expected, _) in servers {
        for (other, _, address) in servers.into_iter().filter(|(other, ..)| *other != scheme) {
            attempts.spawn(async move {
                let error = connect_error(&format!("{scheme}://{address}")).await;
                let text = error.to_string();
                assert!(["unavailable", "invalid"].contains(&error.code()), "{scheme} to {other}: {text}");
                assert!(text.contains(expected), "{scheme} to {other}: {text}");
                assert!(text.contains(&address.to_string()), "{scheme} to {other}: {text}");
            });
        }
    }
    while let Some(ended) = attempts.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn redis_accepts_only_the_right_password() {
    let redis = Redis::with(vec!["--requirepass", "secret"]);
    let error = Keeper::connect_unfenced(&redis.url()).await.unwrap_err();
    assert_eq!(error.code(), "unauthenticated", "{error}");
    assert!(error.to_string().contains("password@"), "{error}");
    let wrong = format!("redis://:wrong@{}", redis.address);
    assert_eq!(Keeper::connect_unfenced(&wrong).await.unwrap_err().code(), "unauthenticated");
    let keeper = Keeper::connect_unfenced(&format!("redis://:secret@{}", redis.address)).await.unwrap();
    keeper.lock("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn postgres_errors_name_the_missing_database_user_and_permission() {
    let postgres = Postgres::start();
    let missing = format!("postgres://postgres@{}/nowhere", postgres.address);
    let error = Keeper::connect(&missing).await.unwrap_err();
    assert_eq!(error.code(), "invalid", "{error}");
    let stranger = format!("postgres://stranger@{}/postgres", postgres.address);
    let error = Keeper::connect(&stranger).await.unwrap_err();
    assert_eq!(error.code(), "unauthenticated", "{error}");
    postgres.query("CREATE ROLE guest LOGIN");
    let guest = format!("postgres://guest@{}/postgres", postgres.address);
    let error = Keeper::connect(&guest).await.unwrap_err();
    assert_eq!(error.code(), "forbidden", "{error}");
    assert!(error.to_string().contains("CREATE SCHEMA lockkeeper"), "{error}");
}
