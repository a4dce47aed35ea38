//! Servers that refuse, want a password, or are of another kind than the URL says.

use lockkeeper::prelude::*;

use crate::cases::soon;
use crate::child::connect;
use crate::servers::Site;
use crate::servers::consul::Consul;
use crate::servers::etcd::Etcd;
use crate::servers::postgres::Postgres;
use crate::servers::redis::Redis;
use crate::servers::zookeeper::Zookeeper;

async fn refused(url: &str) -> Error {
    let builder = Keeper::builder().connect_timeout(2.secs()).request_timeout(2.secs());
    soon(builder.connect_unfenced(url)).await.unwrap_err()
}

#[tokio::test]
async fn a_postgres_with_passwords_takes_the_right_one_alone() {
    let mut postgres = Postgres::start();
    postgres.query("CREATE ROLE keeper LOGIN PASSWORD 'secret'");
    postgres.query("CREATE SCHEMA lockkeeper AUTHORIZATION keeper");
    postgres.admit("host all keeper all scram-sha-256\nhost all postgres all trust\n");
    let url = |login: &str| format!("postgres://{login}@{}/postgres", postgres.address);
    let missing = refused(&url("keeper")).await;
    let wrong = refused(&url("keeper:wrong")).await;
    for error in [&missing, &wrong] {
        assert_eq!(error.code(), "unauthenticated", "{error}");
        assert!(error.to_string().contains("postgres://user:password@"), "{error}");
        assert!(!error.to_string().contains("wrong@"), "no password in texts: {error}");
    }
    assert!(missing.to_string().contains("wants a password"), "{missing}");
    assert!(wrong.to_string().contains("password authentication failed"), "{wrong}");
    // Nobody who is not in the rules.
    let stranger = refused(&url("stranger")).await;
    assert_eq!(stranger.code(), "unauthenticated", "{stranger}");
    let keeper = Keeper::connect(&url("keeper:secret")).await.unwrap();
    soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn redlock_takes_the_password_to_all_instances() {
    let instances: Vec<Redis> = (0..3).map(|_| Redis::with(vec!["--requirepass", "secret"])).collect();
    let hosts: Vec<String> = instances.iter().map(|instance| instance.address.to_string()).collect();
    let url = |login: &str| format!("redlock://{login}{}?timeout_ms=300", hosts.join(","));
    for login in ["", ":wrong@"] {
        let error = refused(&url(login)).await;
        assert_eq!(error.code(), "unauthenticated", "{error}");
        assert!(error.to_string().contains("password@"), "{error}");
    }
    let (keeper, _) = connect(&url(":secret@")).await;
    let guard = soon(keeper.lock("a").ttl(30.secs()).acquire()).await.unwrap();
    assert!(soon(keeper.lock("a").try_acquire()).await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_user_of_redis_without_rights_and_a_replica_are_told_what_is_missing() {
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

/// Each of these servers, reached with the URL of each other: the message says what was looked for and where.
#[tokio::test]
async fn a_server_of_another_kind_is_not_taken_for_the_right_one() {
    let (redis, postgres, etcd) = (Redis::start(), Postgres::start(), Etcd::start());
    let (zookeeper, consul) = (Zookeeper::start(), Consul::start());
    let servers = [
        ("redis", "Redis", redis.address),
        ("postgres", "PostgreSQL", postgres.address),
        ("etcd", "etcd", etcd.address),
        ("zookeeper", "ZooKeeper", zookeeper.address),
        ("consul", "Consul", consul.address),
    ];
    let mut asked = tokio::task::JoinSet::new();
    for (scheme, expected, _) in servers {
        for (other, _, address) in servers.into_iter().filter(|(other, ..)| *other != scheme) {
            asked.spawn(async move {
                let error = refused(&format!("{scheme}://{address}")).await;
                let text = error.to_string();
                assert!(["unavailable", "invalid"].contains(&error.code()), "{scheme} to {other}: {text}");
                assert!(text.contains(expected), "{scheme} to {other}: {text}");
                assert!(text.contains(&address.to_string()), "{scheme} to {other}: {text}");
            });
        }
    }
    while let Some(ended) = asked.join_next().await {
        ended.unwrap();
    }
}
