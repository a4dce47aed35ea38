//! The recipe that people use on Redis today, straight on its client crate, as a yardstick: `SET NX PX` with a random
//! value, and a compare-and-delete script. Nothing of ours stands between it and the server.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Script};

use super::super::contender::BenchError;

const RELEASE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
const TTL_MS: u64 = 10_000;
/// Between two tries when the lock is held by another: the recipe polls.
const POLL: Duration = Duration::from_millis(1);

/// One connection to Redis.
pub(crate) struct CrateRedis {
    connection: MultiplexedConnection,
    release: Script,
    number: usize,
    taken: u64,
}

/// What is held: the lock and the value that nobody else has.
pub(crate) struct RedisKey {
    lock: String,
    value: String,
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Redis(error.to_string())
}

impl CrateRedis {
    pub(crate) async fn connect(address: &str, number: usize) -> Result<CrateRedis, BenchError> {
        let client = redis::Client::open(format!("redis://{address}")).map_err(failed)?;
        let connection = client.get_multiplexed_async_connection().await.map_err(failed)?;
        Ok(CrateRedis { connection, release: Script::new(RELEASE), number, taken: 0 })
    }

    pub(crate) async fn acquire(&mut self, lock: &str, contended: bool) -> Result<RedisKey, BenchError> {
        self.taken += 1;
        let value = format!("{:08x}-{:012x}", self.number, self.taken);
        let mut take = Cmd::new();
        take.arg("SET").arg(lock).arg(&value).arg("NX").arg("PX").arg(TTL_MS);
        loop {
            let taken: Option<String> = take.query_async(&mut self.connection).await.map_err(failed)?;
            if taken.is_some() {
                return Ok(RedisKey { lock: lock.to_owned(), value });
            }
            if !contended {
                return Err(BenchError::Redis(format!("{lock} is held by somebody else")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    pub(crate) async fn release(&mut self, key: &RedisKey) -> Result<(), BenchError> {
        let mut script = self.release.key(&key.lock);
        let deleted: u64 = script.arg(&key.value).invoke_async(&mut self.connection).await.map_err(failed)?;
        if deleted == 1 {
            Ok(())
        } else {
            Err(BenchError::Redis(format!("{} was not held any more", key.lock)))
        }
    }
}
