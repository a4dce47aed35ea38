use std::sync::Arc;

use lockkeeper::gates::redis::{FencedScript, RedisGate, fence_key};
use lockkeeper::{Error, Token};
use redis::aio::ConnectionManager;

use crate::servers::Site;
use crate::servers::redis::Redis;
use crate::writers::{assert_fenced, numbers, write_at_once};

pub(crate) async fn connect(url: &str) -> ConnectionManager {
    redis::Client::open(url).unwrap().get_connection_manager().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_are_fenced() {
    let server = Redis::start();
    // Each write records itself, in the same script.
    let remember = Arc::new(FencedScript::new("return redis.call('RPUSH', KEYS[1], ARGV[1])"));
    let url = server.url();
    let passed = write_at_once(|_, token| {
        let (url, remember) = (url.clone(), Arc::clone(&remember));
        async move {
            let gate = RedisGate::new(connect(&url).await);
            let _: i64 = gate.run(&remember, "account/1", &["history"], &[token.0], token).await?;
            Ok(())
        }
    })
    .await;
    assert_fenced(passed, &numbers(&server.command(&["LRANGE", "history", "0", "-1"])));
}

#[tokio::test]
async fn every_kind_of_write_is_fenced() {
    let server = Redis::start();
    let gate = RedisGate::new(connect(&server.url()).await);
    gate.set("a", "one", Token(5)).await.unwrap();
    gate.set("a", b"two".as_slice(), Token(5)).await.unwrap();
    assert_eq!(gate.set("a", "late", Token(4)).await, Err(Error::StaleToken { last_token: Token(5) }));
    assert_eq!(gate.get::<String>("a", Token(6)).await.unwrap(), "two");
    // A read under a token refuses older tokens from then on.
    assert_eq!(gate.set("a", "late", Token(5)).await.unwrap_err().code(), "stale_token");
    assert_eq!(gate.get::<Option<String>>("nothing", Token(1)).await.unwrap(), None);

    gate.hset("h", &[("x", 1), ("y", 2)], Token(7)).await.unwrap();
    assert_eq!(gate.hset("h", &[("x", 9)], Token(6)).await.unwrap_err().code(), "stale_token");
    assert_eq!(server.command(&["HGETALL", "h"]), "x\n1\ny\n2");

    // The token outlives the data.
    assert!(gate.delete("h", Token(8)).await.unwrap());
    assert!(!gate.delete("h", Token(8)).await.unwrap());
    assert_eq!(gate.hset("h", &[("x", 9)], Token(7)).await.unwrap_err().code(), "stale_token");

    // Numbers beyond 2^53 are compared exactly, and numerically, not as text.
    let high = (1_u64 << 53) + 1;
    gate.set("n", "1", Token(high)).await.unwrap();
    assert_eq!(
        gate.set("n", "2", Token(high - 1)).await.unwrap_err(),
        Error::StaleToken { last_token: Token(high) }
    );
    gate.set("m", "1", Token(9)).await.unwrap();
    gate.set("m", "2", Token(10)).await.unwrap();

    // The error of a custom script is reported, and its answer is returned.
    let failing = FencedScript::new("return redis.call('NOSUCH')");
    assert_eq!(gate.run::<()>(&failing, "a", &[], &[""; 0], Token(9)).await.unwrap_err().code(), "invalid");
    let list = FencedScript::new("return {KEYS[1], ARGV[1], #KEYS, #ARGV}");
    let answer: (String, String, u64, u64) =
        gate.run(&list, "a", &["k"], &["v", "w"], Token(9)).await.unwrap();
    assert_eq!(answer, ("k".to_owned(), "v".to_owned(), 1, 2));
}

#[tokio::test]
async fn probe_detects_an_unsafe_eviction_policy() {
    let server = Redis::start();
    let gate = RedisGate::new(connect(&server.url()).await);
    gate.probe().await.unwrap();
    assert_eq!(server.command(&["KEYS", "*"]), "", "the probe leaves keys behind");
    server.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let error = gate.probe().await.unwrap_err();
    assert_eq!(error.code(), "fatal");
    assert!(error.to_string().contains("maxmemory-policy"), "{error}");
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    gate.probe().await.unwrap();
    assert_eq!(fence_key("x"), "lockkeeper:fence:{x}");
}
