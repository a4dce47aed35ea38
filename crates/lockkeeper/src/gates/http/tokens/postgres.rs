//! In the fence table of a PostgreSQL.

use std::sync::Arc;

use lockkeeper_core::Token;
use tokio_postgres::Client;

use super::{Raising, Tokens};
use crate::error::Error;
use crate::gates::postgres::{Fence, raise};

/// Kept in `lockkeeper.fence`, where other instances see them too.
#[derive(Debug, Clone)]
pub struct PostgresTokens {
    client: Arc<Client>,
}

impl PostgresTokens {
    /// On this connection; makes the fence table if it is not there.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have made the table.
    pub async fn open(client: impl Into<Arc<Client>>) -> Result<PostgresTokens, Error> {
        let client = client.into();
        Fence::migrate(&*client).await?;
        Ok(PostgresTokens { client })
    }
}

impl Tokens for PostgresTokens {
    fn raise<'a>(&'a self, lock: &'a str, token: Token) -> Raising<'a> {
        // A statement of its own is a transaction of its own: it is durable when it is answered.
        Box::pin(raise(&*self.client, lock, token))
    }
}
