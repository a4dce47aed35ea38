//! Tokens in the fence table of PostgreSQL.

use std::sync::Arc;

use lockkeeper_core::Token;
use tokio::sync::Mutex;
use tokio_postgres::{Client, Config, NoTls};

use super::{RaiseFuture, Tokens};
use crate::error::Error;
use crate::gates::postgres::{Fence, raise, to_error};

/// Token store in the table `lockkeeper.fence`, shared with other instances.
#[derive(Debug, Clone)]
pub struct PostgresTokens {
    /// How to reconnect; `None` if the caller owns the connection.
    config: Option<Config>,
    client: Arc<Mutex<Arc<Client>>>,
}

impl PostgresTokens {
    /// Connects without TLS, and reconnects when the connection is lost. Creates the fence table if it does not exist.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have created the table.
    pub async fn connect(url: &str) -> Result<PostgresTokens, Error> {
        let config: Config = url.parse().map_err(|error| {
            Error::invalid(format!(
                "{url} is not a PostgreSQL URL ({error}): use postgres://user:password@host/database"
            ))
        })?;
        let mut tokens = PostgresTokens::open(connect(&config).await?).await?;
        tokens.config = Some(config);
        Ok(tokens)
    }

    /// Uses an existing connection, such as one with TLS. Creates the fence table if it does not exist.
    ///
    /// When the connection is lost, requests under a lock are answered 503 until a new layer replaces this one.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have created the table.
    pub async fn open(client: impl Into<Arc<Client>>) -> Result<PostgresTokens, Error> {
        let client = client.into();
        Fence::migrate(&*client).await?;
        Ok(PostgresTokens { config: None, client: Arc::new(Mutex::new(client)) })
    }

    /// The connection, reopened if it was lost.
    async fn client(&self) -> Result<Arc<Client>, Error> {
        let mut client = self.client.lock().await;
        if let Some(config) = &self.config
            && client.is_closed()
        {
            *client = Arc::new(connect(config).await?);
        }
        Ok(Arc::clone(&client))
    }
}

async fn connect(config: &Config) -> Result<Client, Error> {
    let (client, connection) = config.connect(NoTls).await.map_err(to_error)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::warn!(%error, "lost the connection to the fence table in PostgreSQL");
        }
    });
    Ok(client)
}

impl Tokens for PostgresTokens {
    fn raise<'a>(&'a self, lock: &'a str, token: Token) -> RaiseFuture<'a> {
        Box::pin(async move {
            let client = self.client().await?;
            // A single statement is its own transaction: it is durable when it is answered.
            raise(&*client, lock, token).await
        })
    }
}
