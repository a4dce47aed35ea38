//! The gate of Redis: a script checks the token and writes, and Redis runs scripts one after the other.
//!
//! The highest token of a resource is a key of its own beside the data ([`fence_key`]), without a time to live, in the same
//! slot of a cluster. It stays when the data is deleted.
//!
//! **What it does NOT protect from.** Redis answers before its replicas have the write: a fail-over can take back data and
//! tokens, and then a stale token passes. A Redis that is allowed to evict any key (`allkeys-*`) may forget tokens;
//! [`RedisGate::probe`] looks for that.

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

/// A script of your own behind the check of the token.
///
/// Write it as for `EVAL`: it sees its `KEYS` and `ARGV`, and what it returns is the answer. The check is put before it, so
/// that both are one script.
#[derive(Debug, Clone)]
pub struct FencedScript {
    script: Script,
}

impl FencedScript {
    /// From a text in Lua.
    pub fn new(write: &str) -> FencedScript {
        FencedScript { script: Script::new(&include_str!("redis.lua").replace("--WRITE--", write)) }
    }
}

/// The gate, on a connection that can be shared, such as a `ConnectionManager` or a `MultiplexedConnection`.
#[derive(Debug, Clone)]
pub struct RedisGate<C> {
    connection: C,
}

impl<C: ConnectionLike + Clone + Send> RedisGate<C> {
    /// A gate on this connection.
    pub fn new(connection: C) -> RedisGate<C> {
        RedisGate { connection }
    }

    /// Reads a key under the token: from now on, older tokens are refused.
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

    /// `SET key value`.
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

    /// `HSET key field value ..`.
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

    /// `DEL key`; whether it was there. The token stays.
    ///
    /// # Errors
    ///
    /// As [`run`](RedisGate::run).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have deleted it.
    pub async fn delete(&self, key: &str, token: Token) -> Result<bool, Error> {
        self.run(&DELETE, key, &[key], &[""; 0], token).await
    }

    /// Checks the token at a resource and runs your script, in one step. In a cluster, the resource and all keys have to be in
    /// one slot.
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
    /// [`Error::StaleToken`] if a higher token was at the resource; the script did not run. [`Error::Unknown`] if the answer
    /// was lost.
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
        let answer: Vec<Value> = call.invoke_async(&mut self.connection.clone()).await.map_err(told)?;
        let mut answer = answer.into_iter();
        let passed = answer.next().unwrap_or(Value::Nil);
        let rest = answer.next().unwrap_or(Value::Nil);
        if passed == Value::Int(1) {
            return T::from_redis_value(rest).map_err(|error| {
                Error::invalid(format!("it was written, but the answer is of another type: {error}"))
            });
        }
        let last = u64::from_redis_value(rest).map_err(|error| Error::Fatal(format_smolstr!("{error}")))?;
        Err(Error::StaleToken { last_token: Token(last) })
    }

    /// Proves on this Redis that a newer token passes and a stale one does not, and that Redis is not allowed to forget
    /// tokens. What it writes it removes.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if it does not hold.
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
        cleaned.map_err(told)?;
        self.look_for_eviction().await
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

    async fn look_for_eviction(&self) -> Result<(), Error> {
        let info = redis::cmd("INFO").arg("memory").query_async::<String>(&mut self.connection.clone()).await;
        let Ok(info) = info else {
            // Not everybody may ask.
            tracing::debug!("Redis does not tell its eviction policy");
            return Ok(());
        };
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let limited = field("maxmemory:").is_some_and(|bytes| bytes != "0");
        match field("maxmemory_policy:") {
            Some(policy) if limited && policy.starts_with("allkeys") => Err(Error::Fatal(format_smolstr!(
                "this Redis may forget tokens when its memory is full (maxmemory-policy {policy}): set it to noeviction or to \
                 one of volatile-*"
            ))),
            _ => Ok(()),
        }
    }
}

/// The key with the highest token of a resource. In a cluster it is in the slot of the resource's own key.
pub fn fence_key(resource: &str) -> String {
    let has_tag = resource.split_once('{').is_some_and(|(_, rest)| rest.find('}').is_some_and(|end| end > 0));
    if has_tag { format!("lockkeeper:fence:{resource}") } else { format!("lockkeeper:fence:{{{resource}}}") }
}

/// An error of Redis in plain words, with the next step.
fn told(error: RedisError) -> Error {
    let code = error.code().unwrap_or_default().to_owned();
    match (error.kind(), code.as_str()) {
        (_, "NOAUTH" | "WRONGPASS") | (ErrorKind::AuthenticationFailed, _) => Error::Unauthenticated(
            format_smolstr!("Redis wants to know who asks ({error}): connect with user and password"),
        ),
        (_, "NOPERM") => Error::Forbidden(format_smolstr!(
            "Redis does not allow it ({error}): the user needs eval, evalsha and script, and the keys lockkeeper:fence:* \
             beside its own"
        )),
        (ErrorKind::Server(ServerErrorKind::ReadOnly), _) | (_, "READONLY") => {
            Error::unavailable("this Redis is a replica and takes no writes: connect to its primary")
        }
        (ErrorKind::Server(ServerErrorKind::CrossSlot), _) | (_, "CROSSSLOT") => Error::invalid(format!(
            "the keys are in different slots of the cluster ({error}): give them a common {{tag}}"
        )),
        (_, "OOM" | "LOADING" | "BUSY" | "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN") => {
            Error::unavailable(format!("Redis cannot do it now ({error}): nothing was written, try again"))
        }
        (ErrorKind::Io, _) if error.is_connection_refusal() => {
            Error::unavailable("no Redis answers (connection refused): start it, or look at the address")
        }
        (ErrorKind::Io, _) => Error::Unknown(format_smolstr!(
            "the answer of Redis was lost ({error}): it may have been written; the same write with the same token does no harm"
        )),
        _ => Error::invalid(format!("Redis refuses: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fence_is_in_the_slot_of_its_resource() {
        assert_eq!(fence_key("account/1"), "lockkeeper:fence:{account/1}");
        assert_eq!(fence_key("a{tag}b"), "lockkeeper:fence:a{tag}b");
        assert_eq!(fence_key("a{}b"), "lockkeeper:fence:{a{}b}");
    }
}
