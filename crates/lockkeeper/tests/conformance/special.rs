//! What holds for one engine only.

use lockkeeper::prelude::*;
use lockkeeper_testkit::wire::Wire;

use crate::cases::soon;
use crate::child::connect;
use crate::servers::Site;
use crate::servers::pgbouncer::PgBouncer;
use crate::servers::postgres::Postgres;
use crate::servers::redis::Redis;
use crate::servers::redlock::Redlock;

fn codes(findings: &[lockkeeper::Finding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.code).collect()
}

#[tokio::test]
async fn volatile_tokens_of_redis_are_taken_for_a_fence_only_if_that_is_said_by_name() {
    let redis = Redis::start();
    let error = Keeper::connect(&redis.url()).await.unwrap_err();
    assert_eq!(error.code(), "unsupported");
    assert!(error.to_string().contains("accept_volatile_tokens"), "{error}");
    let keeper = Keeper::builder().accept_volatile_tokens().connect(&redis.url()).await.unwrap();
    assert!(keeper.lock("a").acquire().await.unwrap().token().0 > 0);
}

#[tokio::test]
async fn a_redis_that_lost_everything_does_not_begin_at_one_again() {
    let mut redis = Redis::with(vec!["--appendonly", "no"]);
    let token = |url: String| async move {
        let keeper = Keeper::builder().accept_volatile_tokens().connect(&url).await.unwrap();
        let guard = keeper.lock("a").acquire().await.unwrap();
        let token = guard.token();
        guard.release().await.unwrap();
        token
    };
    let before = token(redis.url()).await;
    redis.kill();
    redis.restart();
    assert_eq!(redis.command(&["DBSIZE"]), "0");
    assert!(token(redis.url()).await > before);
}

#[tokio::test]
async fn a_redis_that_wants_a_password_says_so_and_takes_it() {
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
async fn redis_scripts_that_were_forgotten_are_sent_again() {
    let redis = Redis::start();
    let (keeper, _) = connect(&redis.url()).await;
    let guard = keeper.lock("a").acquire().await.unwrap();
    redis.command(&["SCRIPT", "FLUSH"]);
    guard.release().await.unwrap();
    soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_release_wakes_one_waiter_of_a_redis_keeper_without_polling() {
    let redis = Redis::start();
    let (holder, _) = connect(&redis.url()).await;
    let (waits, _) = connect(&redis.url()).await;
    let guard = holder.lock("busy").ttl(30.secs()).acquire().await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let lock = waits.lock("busy").ttl(30.secs());
        waiters.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    // The first one has asked, and listens.
    while !redis.command(&["PUBSUB", "NUMSUB", "lockkeeper:lock:busy:free"]).ends_with("1") {
        tokio::time::sleep(5.millis()).await;
    }
    redis.command(&["CONFIG", "RESETSTAT"]);
    guard.release().await.unwrap();
    while let Some(ended) = soon(waiters.join_next()).await {
        ended.unwrap();
    }
    let statistics = redis.command(&["INFO", "commandstats"]);
    let calls = statistics.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    let calls: u32 = calls.split(',').next().unwrap().parse().unwrap();
    // A take and a give for each, a second look for some; a herd would be 50 takes for each release.
    assert!(calls < 260, "{calls} scripts for 50 waiters");
}

#[tokio::test]
async fn the_doctor_finds_a_redis_without_persistence_and_with_replicas() {
    let safe = Redis::start();
    assert_eq!(codes(&connect(&safe.url()).await.0.examine().await.unwrap()), Vec::<&str>::new());
    let forgetful = Redis::with(vec!["--appendonly", "no"]);
    let replica = Redis::with(vec!["--appendonly", "yes", "--appendfsync", "always"]);
    let (host, port) = (forgetful.address.ip().to_string(), forgetful.address.port().to_string());
    replica.command(&["REPLICAOF", &host, &port]);
    let until = std::time::Instant::now() + 20.secs();
    while !forgetful.command(&["INFO", "replication"]).contains("connected_slaves:1") {
        assert!(std::time::Instant::now() < until, "the replica does not connect");
        tokio::time::sleep(20.millis()).await;
    }
    let (keeper, _) = connect(&forgetful.url()).await;
    let found = keeper.examine().await.unwrap();
    assert_eq!(codes(&found), ["asynchronous-replicas", "no-persistence"]);
    let (of_replica, _) = connect(&replica.url()).await;
    assert!(codes(&of_replica.examine().await.unwrap()).contains(&"replica"));
}

#[tokio::test]
async fn redlock_works_with_two_of_five_down_and_not_with_three() {
    let mut site = Redlock::start();
    let (keeper, _) = connect(&site.url()).await;
    let guard = keeper.lock("a").ttl(3.secs()).acquire().await.unwrap();
    site.instances[0].kill();
    site.instances[4].kill();
    soon(keeper.lock("b").ttl(3.secs()).acquire()).await.unwrap().release().await.unwrap();
    tokio::time::sleep(4.secs()).await;
    guard.check().unwrap();
    site.instances[2].kill();
    let builder = Keeper::builder().connect_timeout(500.millis()).request_timeout(1.secs());
    assert_eq!(builder.connect_unfenced(&site.url()).await.unwrap_err().code(), "unavailable");
    soon(guard.lost()).await;
}

#[tokio::test]
async fn instances_of_redlock_that_restart_empty_one_by_one_do_not_wear_the_lock_down() {
    let mut site = Redlock::start();
    let (keeper, _) = connect(&site.url()).await;
    let ttl = 3.secs();
    let guard = keeper.lock("worn").ttl(ttl).acquire().await.unwrap();
    for index in 0..5 {
        site.instances[index].command(&["FLUSHALL"]);
        let until = std::time::Instant::now() + 20.secs();
        while site.instances[index].command(&["EXISTS", "lockkeeper:lock:worn"]) != "1" {
            assert!(std::time::Instant::now() < until, "instance {index} was not given the lock again");
            tokio::time::sleep(20.millis()).await;
        }
    }
    guard.check().unwrap();
    guard.release().await.unwrap();
    for instance in &site.instances {
        assert_eq!(instance.command(&["EXISTS", "lockkeeper:lock:worn"]), "0");
    }
    site.kill();
}

#[tokio::test]
async fn redlock_of_fewer_than_three_or_of_the_same_server_is_refused_or_found() {
    let site = Redlock::start();
    let addresses = site.addresses();
    for few in [1, 2] {
        let error = Keeper::connect_unfenced(&site.url_at(&addresses[..few])).await.unwrap_err();
        assert_eq!(error.code(), "invalid");
        assert!(error.to_string().contains("at least 3"), "{error}");
    }
    let (keeper, _) = connect(&site.url_at(&addresses[..4])).await;
    assert_eq!(codes(&keeper.examine().await.unwrap()), ["even-number"]);
    // The first one by two addresses.
    let another_way = Wire::to(addresses[0]).unwrap();
    let same = format!("redlock://{},{},{}", another_way.address, addresses[0], addresses[1]);
    let (keeper, _) = connect(&same).await;
    assert_eq!(codes(&keeper.examine().await.unwrap()), ["same-server"]);
}

#[tokio::test]
async fn a_pooler_in_transaction_mode_is_refused_for_session_level_locks_and_right_for_transaction_level() {
    let postgres = Postgres::start();
    let bouncer = PgBouncer::start(&postgres, "transaction");
    let error = Keeper::connect(&bouncer.url("session")).await.unwrap_err();
    assert_eq!(error.code(), "unsupported", "{error}");
    for word in ["PgBouncer", "session mode", "level=transaction"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    let keeper = Keeper::connect(&bouncer.url("transaction")).await.unwrap();
    let other = Keeper::connect(&bouncer.url("transaction")).await.unwrap();
    let direct = Keeper::connect(&postgres.url()).await.unwrap();
    let guard = keeper.lock("pooled").ttl(3.secs()).acquire().await.unwrap();
    for keeper in [&other, &direct] {
        assert!(soon(keeper.lock("pooled").try_acquire()).await.unwrap().is_none());
    }
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(soon(direct.lock("pooled").wait(5.secs()).acquire()).await.unwrap().token() > token);
    assert_eq!(codes(&keeper.examine().await.unwrap()), ["pooler"]);
}

#[tokio::test]
async fn a_pooler_in_session_mode_is_as_good_as_none() {
    let postgres = Postgres::start();
    let bouncer = PgBouncer::start(&postgres, "session");
    let keeper = Keeper::connect(&bouncer.url("session")).await.unwrap();
    let direct = Keeper::connect(&postgres.url()).await.unwrap();
    let guard = keeper.lock("pooled").acquire().await.unwrap();
    assert!(soon(direct.lock("pooled").try_acquire()).await.unwrap().is_none());
    guard.release().await.unwrap();
    soon(direct.lock("pooled").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn two_names_with_the_same_number_in_postgres_are_an_error() {
    let postgres = Postgres::start();
    let keeper = Keeper::connect(&postgres.url()).await.unwrap();
    postgres.query("INSERT INTO lockkeeper.name VALUES (hashtextextended('orders', 0), 'invoices')");
    let error = soon(keeper.lock("orders").acquire()).await.unwrap_err();
    assert_eq!(error.code(), "invalid");
    assert!(error.to_string().contains("invoices"), "{error}");
    assert_eq!(postgres.left_behind(), Vec::<String>::new());
}

#[tokio::test]
async fn psql_and_lockkeeper_exclude_each_other() {
    let postgres = Postgres::start();
    let keeper = Keeper::connect(&postgres.url()).await.unwrap();
    let guard = keeper.lock("by hand").acquire().await.unwrap();
    let try_by_hand = "SELECT pg_try_advisory_lock(hashtextextended('by hand', 0))";
    assert_eq!(postgres.query(try_by_hand), "f");
    guard.release().await.unwrap();
    assert_eq!(postgres.query(try_by_hand), "t");
}

#[tokio::test]
async fn a_postgres_connection_that_is_ended_loses_its_lock_at_once() {
    let postgres = Postgres::start();
    let keeper = Keeper::connect(&postgres.url()).await.unwrap();
    let guard = keeper.lock("ended").ttl(60.secs()).acquire().await.unwrap();
    postgres.query("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'");
    soon(guard.lost()).await;
    assert!(guard.check().is_err());
    assert_eq!(guard.release().await.unwrap_err().code(), "session_lost");
    soon(keeper.lock("ended").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_postgres_without_such_a_user_database_or_rights_says_so() {
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
