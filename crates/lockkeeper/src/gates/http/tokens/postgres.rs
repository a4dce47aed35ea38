//! In the fence table of a PostgreSQL.

use std::sync::Arc;

use lockkeeper_core::Token;
use tokio::sync::Mutex;
use tokio_postgres::{Client, Config, NoTls};

use super::{Raising, Tokens};
use crate::error::Error;
use crate::gates::postgres::{Fence, raise, told};

/// Kept in `lockkeeper.fence`, where other instances see them too.
#[derive(Debug, Clone)]
pub struct PostgresTokens {
    /// How to connect again, if we may.
    config: Option<Config>,
    client: Arc<Mutex<Arc<Client>>>,
}

impl PostgresTokens {
    /// On a connection that it opens, and opens again when it is lost; without TLS. Makes the fence table if it is not there.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have made the table.
    pub async fn connect(url: &str) -> Result<PostgresTokens, Error> {
        let config: Config = url.parse().map_err(|error| {
            Error::invalid(format!(
                "{url} is no address of PostgreSQL ({error}): postgres://user:password@host/database"
            ))
        })?;
        let mut tokens = PostgresTokens::open(connect(&config).await?).await?;
        tokens.config = Some(config);
        Ok(tokens)
    }

    /// On a connection of yours, such as one with TLS. When it is lost, requests under a lock are answered 503 until there is a
    /// new layer. Makes the fence table if it is not there.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have made the table.
    pub async fn open(client: impl Into<Arc<Client>>) -> Result<PostgresTokens, Error> {
        let client = client.into();
        Fence::migrate(&*client).await?;
        Ok(PostgresTokens { config: None, client: Arc::new(Mutex::new(client)) })
    }

    /// The connection, a new one if the last is lost.
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
    let (client, connection) = config.connect(NoTls).await.map_err(told)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::warn!(%error, "the connection to the tokens in PostgreSQL is lost");
        }
    });
    Ok(client)
}

impl Tokens for PostgresTokens {
    fn raise<'a>(&'a self, lock: &'a str, token: Token) -> Raising<'a> {
        Box::pin(async move {
            let client = self.client().await?;
            // A statement of its own is a transaction of its own: it is durable when it is answered.
            raise(&*client, lock, token).await
        })
    }
}
