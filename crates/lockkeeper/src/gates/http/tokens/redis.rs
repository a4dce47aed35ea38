//! Tokens in Redis.

use std::sync::LazyLock;

use lockkeeper_core::Token;
use redis::aio::ConnectionLike;

use super::{RaiseFuture, Tokens};
use crate::gates::redis::{FencedScript, RedisGate};

static NO_WRITE: LazyLock<FencedScript> = LazyLock::new(|| FencedScript::new("return 0"));

/// Token store in Redis, shared with other instances.
///
/// Tokens are only as durable as that Redis: use `appendfsync always`. A fail-over to a replica that lags loses tokens.
#[derive(Debug, Clone)]
pub struct RedisTokens<C> {
    gate: RedisGate<C>,
}

impl<C: ConnectionLike + Clone + Send> RedisTokens<C> {
    /// Creates a store on this connection.
    pub fn new(connection: C) -> RedisTokens<C> {
        RedisTokens { gate: RedisGate::new(connection) }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Tokens for RedisTokens<C> {
    fn raise<'a>(&'a self, lock: &'a str, token: Token) -> RaiseFuture<'a> {
        Box::pin(async move {
            let _: i64 = self.gate.run(&NO_WRITE, lock, &[], &[""; 0], token).await?;
            Ok(())
        })
    }
}
