//! The gate of Redis: a script checks the token and writes atomically.
//!
//! The highest token of a resource is a separate key beside the data ([`fence_key`]), without a time to live, in the same
//! slot of a cluster. It remains when the data is deleted.
//!
//! **What it does NOT protect from.** Redis answers before its replicas have the write: a fail-over can lose data and tokens,
//! and then a stale token passes. A Redis that may evict any key (`allkeys-*`) can lose tokens; [`RedisGate::probe`] checks
//! for that.

use std::sync::LazyLock;

use lockkeeper_core::Token;
use redis::aio::ConnectionLike;
use redis::{ErrorKind, FromRedisValue, RedisError, Script, ServerErrorKind, ToRedisArgs, Value};
use smol_str::format_smolstr;

use super::{not_enforced, probe_name};
use crate::error::Error;

static GET: LazyLock<FencedScript> = LazyLock::new(|| FencedScript::new("return redis.call('GET', KEYS[1])"));
static SET: LazyLock<FencedScript> =
    LazyLock::new(|| FencedScript::new("return redis.call('SET', KEYS[1], ARGV[1])"));
static HASH_SET: LazyLock<FencedScript> =
    LazyLock::new(|| FencedScript::new("return redis.call('HSET', KEYS[1], unpack(ARGV))"));
static DELETE: LazyLock<FencedScript> =
    LazyLock::new(|| FencedScript::new("return redis.call('DEL', KEYS[1])"));

/// Lua script that runs after the check of the token, atomically with it.
///
/// Write it as for `EVAL`: it has its own `KEYS` and `ARGV`, and its return value is the answer.
#[derive(Debug, Clone)]
pub struct FencedScript {
    script: Script,
}

impl FencedScript {
    /// Creates a script from Lua source.
    pub fn new(write: &str) -> FencedScript {
        FencedScript { script: Script::new(&include_str!("redis.lua").replace("--WRITE--", write)) }
    }
}

/// Gate of a Redis, on a cloneable connection such as a `ConnectionManager` or a `MultiplexedConnection`.
#[derive(Debug, Clone)]
pub struct RedisGate<C> {
    connection: C,
}

impl<C: ConnectionLike + Clone + Send> RedisGate<C> {
    /// Creates a gate on this connection.
    pub fn new(connection: C) -> RedisGate<C> {
        RedisGate { connection }
    }

    /// Reads a key and refuses older tokens from then on.
    ///
    /// # Errors
    ///
    /// As [`run`](RedisGate::run).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have raised the token.
    pub async fn get<T: FromRedisValue>(&self, key: &str, token: Token) -> Result<T, Error> {
        self.run(&GET, key, &[key], &[""; 0], token).await
    }

    /// Runs `SET key value`.
    ///
    /// # Errors
    ///
    /// As [`run`](RedisGate::run).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have written.
    pub async fn set(&self, key: &str, value: impl ToRedisArgs, token: Token) -> Result<(), Error> {
        self.run(&SET, key, &[key], &[value], token).await
    }

    /// Runs `HSET key field value ..`.
    ///
    /// # Errors
    ///
    /// As [`run`](RedisGate::run).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have written.
    pub async fn hset<V: ToRedisArgs>(
        &self,
        key: &str,
        fields: &[(&str, V)],
        token: Token,
    ) -> Result<(), Error> {
        let _: i64 = self.run(&HASH_SET, key, &[key], fields, token).await?;
        Ok(())
    }

    /// Runs `DEL key` and returns whether the key existed. The token remains.
    ///
    /// # Errors
    ///
    /// As [`run`](RedisGate::run).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have deleted the key.
    pub async fn delete(&self, key: &str, token: Token) -> Result<bool, Error> {
        self.run(&DELETE, key, &[key], &[""; 0], token).await
    }

    /// Checks the token of a resource and runs a script, atomically.
    ///
    /// In a cluster, the resource and all keys must be in one slot.
    ///
    /// ```no_run
    /// # async fn example(connection: redis::aio::ConnectionManager, token: lockkeeper::Token) -> Result<(), lockkeeper::Error> {
    /// use lockkeeper::gates::redis::{FencedScript, RedisGate};
    ///
    /// let debit = FencedScript::new(
    ///     "if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[1]) then return -1 end
    ///      return redis.call('DECRBY', KEYS[1], ARGV[1])",
    /// );
    /// let gate = RedisGate::new(connection);
    /// let balance: i64 = gate.run(&debit, "account/4472", &["account/4472"], &["30"], token).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`] if the resource has seen a higher token; the script did not run. [`Error::Unknown`] if the
    /// answer was lost.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have run the script.
    pub async fn run<T: FromRedisValue>(
        &self,
        script: &FencedScript,
        resource: &str,
        keys: &[&str],
        arguments: &[impl ToRedisArgs],
        token: Token,
    ) -> Result<T, Error> {
        let mut call = script.script.prepare_invoke();
        call.key(fence_key(resource)).arg(token.0);
        for key in keys {
            call.key(*key);
        }
        for argument in arguments {
            call.arg(argument);
        }
        let answer: Vec<Value> = call.invoke_async(&mut self.connection.clone()).await.map_err(to_error)?;
        let mut answer = answer.into_iter();
        let passed = answer.next().unwrap_or(Value::Nil);
        let rest = answer.next().unwrap_or(Value::Nil);
        if passed == Value::Int(1) {
            return T::from_redis_value(rest).map_err(|error| {
                Error::invalid(format!("the script ran, but its answer has another type: {error}"))
            });
        }
        let last = u64::from_redis_value(rest).map_err(|error| Error::Fatal(format_smolstr!("{error}")))?;
        Err(Error::StaleToken { last_token: Token(last) })
    }

    /// Proves, on this Redis, that a newer token passes and a stale one does not, and that Redis does not evict tokens. It
    /// removes what it writes.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if the proof fails.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may leave two small keys behind.
    pub async fn probe(&self) -> Result<(), Error> {
        let key = probe_name();
        let outcome = self.try_stale_writes(&key).await;
        let mut connection = self.connection.clone();
        let cleaned =
            redis::cmd("DEL").arg(&key).arg(fence_key(&key)).query_async::<()>(&mut connection).await;
        outcome?;
        cleaned.map_err(to_error)?;
        self.check_eviction_policy().await
    }

    async fn try_stale_writes(&self, key: &str) -> Result<(), Error> {
        self.set(key, "older", Token(1)).await?;
        self.set(key, "newer", Token(2)).await?;
        let stale = self.set(key, "stale", Token(1)).await;
        let value: String = self.get(key, Token(2)).await?;
        match stale {
            Err(Error::StaleToken { .. }) if value == "newer" => Ok(()),
            Err(error @ (Error::Unknown(_) | Error::Unavailable(_))) => Err(error),
            _ => Err(not_enforced("this Redis")),
        }
    }

    async fn check_eviction_policy(&self) -> Result<(), Error> {
        let info = redis::cmd("INFO").arg("memory").query_async::<String>(&mut self.connection.clone()).await;
        let Ok(info) = info else {
            // The user may lack permission for INFO.
            tracing::debug!("failed to read the eviction policy of Redis");
            return Ok(());
        };
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let limited = field("maxmemory:").is_some_and(|bytes| bytes != "0");
        match field("maxmemory_policy:") {
            Some(policy) if limited && policy.starts_with("allkeys") => Err(Error::Fatal(format_smolstr!(
                "this Redis may evict tokens when its memory is full (maxmemory-policy {policy}): set it to noeviction or to \
                 one of volatile-*"
            ))),
            _ => Ok(()),
        }
    }
}

/// Returns the key that stores the highest token of a resource. In a cluster it is in the slot of the resource's own key.
pub fn fence_key(resource: &str) -> String {
    let has_tag = resource.split_once('{').is_some_and(|(_, rest)| rest.find('}').is_some_and(|end| end > 0));
    if has_tag { format!("lockkeeper:fence:{resource}") } else { format!("lockkeeper:fence:{{{resource}}}") }
}

/// Converts an error of Redis, with the next step.
fn to_error(error: RedisError) -> Error {
    let code = error.code().unwrap_or_default().to_owned();
    match (error.kind(), code.as_str()) {
        (_, "NOAUTH" | "WRONGPASS") | (ErrorKind::AuthenticationFailed, _) => Error::Unauthenticated(
            format_smolstr!("authentication with Redis failed ({error}): connect with user and password"),
        ),
        (_, "NOPERM") => Error::Forbidden(format_smolstr!(
            "permission denied by Redis ({error}): allow the user the commands eval, evalsha and script, and the keys \
             lockkeeper:fence:* besides its own"
        )),
        (ErrorKind::Server(ServerErrorKind::ReadOnly), _) | (_, "READONLY") => {
            Error::unavailable("this Redis is a read-only replica: connect to its primary")
        }
        (ErrorKind::Server(ServerErrorKind::CrossSlot), _) | (_, "CROSSSLOT") => Error::invalid(format!(
            "the keys are in different slots of the cluster ({error}): give them a common {{tag}}"
        )),
        (_, "OOM" | "LOADING" | "BUSY" | "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN") => Error::unavailable(
            format!("Redis is temporarily unavailable ({error}): nothing was written, try again"),
        ),
        (ErrorKind::Io, _) if error.is_connection_refusal() => {
            Error::unavailable("no Redis answers (connection refused): start it, or check the address")
        }
        (ErrorKind::Io, _) => Error::Unknown(format_smolstr!(
            "the answer of Redis was lost ({error}): the write may have happened; read it back before you repeat it"
        )),
        _ => Error::invalid(format!("Redis rejected the command: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fence_key_is_in_the_slot_of_its_resource() {
        assert_eq!(fence_key("account/1"), "lockkeeper:fence:{account/1}");
        assert_eq!(fence_key("a{tag}b"), "lockkeeper:fence:a{tag}b");
        assert_eq!(fence_key("a{}b"), "lockkeeper:fence:{a{}b}");
    }
}
