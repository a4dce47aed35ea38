//! In a Redis.

use std::sync::LazyLock;

use lockkeeper_core::Token;
use redis::aio::ConnectionLike;

use super::{Raising, Tokens};
use crate::gates::redis::{FencedScript, RedisGate};

static NOTHING: LazyLock<FencedScript> = LazyLock::new(|| FencedScript::new("return 0"));

/// Kept in Redis, where other instances see them too. They are as durable as that Redis is: with `appendfsync always`,
/// and without a fail-over to a replica that is behind.
#[derive(Debug, Clone)]
pub struct RedisTokens<C> {
    gate: RedisGate<C>,
}

impl<C: ConnectionLike + Clone + Send> RedisTokens<C> {
    /// On this connection.
    pub fn new(connection: C) -> RedisTokens<C> {
        RedisTokens { gate: RedisGate::new(connection) }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Tokens for RedisTokens<C> {
    fn raise<'a>(&'a self, lock: &'a str, token: Token) -> Raising<'a> {
        Box::pin(async move {
            let _: i64 = self.gate.run(&NOTHING, lock, &[], &[""; 0], token).await?;
            Ok(())
        })
    }
}
