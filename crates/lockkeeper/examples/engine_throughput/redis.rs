//! Redis and Redlock: the scripts of the engine, sent with the crate `redis`.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Script;
use redis::aio::MultiplexedConnection;

use crate::{Recipe, random_hex};

const TTL_MS: u64 = 30_000;
const PLANT: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end return 0";

async fn connected(address: SocketAddr) -> MultiplexedConnection {
    let client = redis::Client::open(format!("redis://{address}")).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

fn key(client: usize) -> String {
    format!("lockkeeper:lock:direct/{client}")
}

fn release() -> Script {
    Script::new(include_str!("../../src/engines/redis/release.lua"))
}

/// One server.
pub(crate) struct One {
    connection: MultiplexedConnection,
    take: Script,
    release: Script,
}

impl One {
    pub(crate) async fn connect(address: SocketAddr) -> One {
        let take = Script::new(include_str!("../../src/engines/redis/take.lua"));
        One { connection: connected(address).await, take, release: release() }
    }
}

impl Recipe for One {
    async fn pair(&self, client: usize) {
        let (id, key) = (random_hex::<20>(), key(client));
        let mut connection = self.connection.clone();
        let mut invocation = self.take.key(&key);
        invocation.key("lockkeeper:token").arg(&id).arg(TTL_MS).arg("x").arg(1).arg("direct");
        let (granted, _): (i64, i64) = invocation.invoke_async(&mut connection).await.unwrap();
        assert_eq!(granted, 1);
        let released: i64 = self.release.key(&key).arg(&id).invoke_async(&mut connection).await.unwrap();
        assert_eq!(released, 1);
    }
}

/// Several servers, of which a majority must agree.
pub(crate) struct Majority {
    connections: Vec<MultiplexedConnection>,
    take: Script,
    release: Script,
}

impl Majority {
    pub(crate) async fn connect(addresses: &[SocketAddr]) -> Majority {
        let connections = join_all(addresses.iter().map(|address| connected(*address))).await;
        Majority { connections, take: Script::new(PLANT), release: release() }
    }
}

impl Recipe for Majority {
    async fn pair(&self, client: usize) {
        let (id, key) = (random_hex::<20>(), key(client));
        for script in [&self.take, &self.release] {
            let all = self.connections.iter().map(async |connection| {
                let mut connection = connection.clone();
                let mut invocation = script.key(&key);
                let answer = invocation.arg(&id).arg(TTL_MS).invoke_async::<i64>(&mut connection);
                let answer = tokio::time::timeout(Duration::from_millis(300), answer).await;
                answer.is_ok_and(|yes| yes == Ok(1))
            });
            let yes = join_all(all).await.into_iter().filter(|yes| *yes).count();
            assert!(yes > self.connections.len() / 2);
        }
    }
}
