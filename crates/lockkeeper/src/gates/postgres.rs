//! The gate of PostgreSQL, through tokio-postgres.
//!
//! Three forms, from the simplest to the strictest:
//!
//! - [`Fence::update`]: one statement, `UPDATE .. WHERE fence_token <= $n`, on a table that has a column `fence_token`.
//! - [`Fence::check`]: inside the caller's transaction, which may write anything. The token of a resource is a row of the
//!   table `lockkeeper.fence`, which stays locked until the transaction ends.
//! - [`Fence::announce`] and a trigger on the table: writers in any language are refused without a token.

use std::error::Error as _;

use lockkeeper_core::Token;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Transaction};

use super::fence_table::{self, PROBE_TOKENS};
use super::{not_enforced, probe_name};
use crate::error::Error;

/// Parameter of an SQL statement.
pub type Parameter<'a> = &'a (dyn ToSql + Sync);

/// Gate of a PostgreSQL database. Stateless: the tokens are in the database.
#[derive(Debug, Clone, Copy)]
pub struct Fence;

impl Fence {
    /// SQL of the migration, for migration tools. It is the file `src/gates/postgres.sql` of this crate.
    pub const MIGRATION: &'static str = fence_table::MIGRATION;

    /// Creates the fence table, its functions and its triggers. Idempotent.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have created them; run it again.
    pub async fn migrate(client: &impl GenericClient) -> Result<(), Error> {
        client.batch_execute(fence_table::MIGRATION).await.map_err(to_error)
    }

    /// Checks the token of a resource, and blocks other transactions on the same resource until this one ends.
    ///
    /// Call it before the first read that decides what to write. It accepts only a transaction: without one, the check would
    /// end before the write.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`]: roll back and stop. [`Error::Unavailable`]: nothing happened, run the transaction again.
    ///
    /// # Cancel safety
    ///
    /// Roll back after a dropped call.
    pub async fn check(transaction: &Transaction<'_>, resource: &str, token: Token) -> Result<(), Error> {
        raise(transaction, resource, token).await
    }

    /// Announces the token to the triggers `lockkeeper.fence_table` and `lockkeeper.fence_row` for this transaction.
    ///
    /// If they refuse a write, the write fails: convert its error with [`to_error`].
    ///
    /// # Cancel safety
    ///
    /// Roll back after a dropped call.
    pub async fn announce(transaction: &Transaction<'_>, token: Token) -> Result<(), Error> {
        let text = fence_table::number(token)?.to_string();
        transaction.query_typed(fence_table::ANNOUNCE, &[(&text, Type::TEXT)]).await.map_err(to_error)?;
        Ok(())
    }

    /// Updates one row in one statement: `UPDATE table SET .., fence_token = $n WHERE key = .. AND fence_token <= $n`.
    ///
    /// The table needs a column `fence_token bigint`; no transaction is needed. This guards one row against a stale *write*.
    /// If the write depends on a read, read after the lock was granted, as with every gate.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`] if the row has a higher token, [`Error::Invalid`] if there is no such row.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have updated the row.
    pub async fn update(
        client: &impl GenericClient,
        table: &str,
        set: &[(&str, Parameter<'_>)],
        key: (&str, Parameter<'_>),
        token: Token,
    ) -> Result<(), Error> {
        let columns: Vec<_> = set.iter().map(|(column, _)| *column).collect();
        let number = fence_table::number(token)?;
        let mut parameters: Vec<Parameter<'_>> = set.iter().map(|(_, value)| *value).collect();
        parameters.extend([key.1, &number as Parameter<'_>]);
        let written = client.execute(&fence_table::update(table, &columns, key.0), &parameters).await;
        if written.map_err(to_error)? > 0 {
            return Ok(());
        }
        let row =
            client.query_opt(&fence_table::token_of_row(table, key.0), &[key.1]).await.map_err(to_error)?;
        let highest = row.map(|row| row.try_get(0)).transpose().map_err(to_error)?;
        Err(fence_table::missing_row(table, token, highest))
    }

    /// Proves, on this database, that [`Fence::check`] accepts a newer token and refuses a stale one. Rolled back.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if the proof fails.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is committed.
    pub async fn probe(client: &mut Client) -> Result<(), Error> {
        let resource = probe_name();
        Fence::probe_write(client, async |transaction, token| raise(transaction, &resource, token).await)
            .await
    }

    /// Proves the same for your own write.
    ///
    /// `write` is called three times in one transaction that is rolled back: it must accept a token, then a newer one, and
    /// then refuse the first.
    ///
    /// ```no_run
    /// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), lockkeeper::Error> {
    /// use lockkeeper::gates::postgres::{Fence, to_error};
    ///
    /// // Does the trigger on `account` really refuse stale tokens?
    /// Fence::probe_write(client, async |transaction, token| {
    ///     Fence::announce(transaction, token).await?;
    ///     transaction.execute("UPDATE account SET balance = balance WHERE id = 1", &[]).await.map_err(to_error)?;
    ///     Ok(())
    /// })
    /// .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if the proof fails; else the error of the write.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is committed.
    pub async fn probe_write(
        client: &mut Client,
        mut write: impl AsyncFnMut(&Transaction<'_>, Token) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (older, newer) = PROBE_TOKENS;
        let transaction = client.transaction().await.map_err(to_error)?;
        write(&transaction, older).await?;
        write(&transaction, newer).await?;
        let stale = write(&transaction, older).await;
        transaction.rollback().await.map_err(to_error)?;
        match stale {
            Err(Error::StaleToken { .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(not_enforced("this PostgreSQL")),
        }
    }
}

/// The check, in the client's current transaction.
pub(super) async fn raise(client: &impl GenericClient, resource: &str, token: Token) -> Result<(), Error> {
    let number = fence_table::number(token)?;
    // With explicit types it takes one round trip, without a prepared statement that a pooler could lose.
    let rows =
        client.query_typed(fence_table::RAISE, &[(&resource, Type::TEXT), (&number, Type::INT8)]).await;
    let highest = match rows.map_err(to_error)?.first() {
        Some(row) => row.try_get::<_, i64>(0).map_err(to_error)?,
        None => return Err(not_enforced("this PostgreSQL")),
    };
    fence_table::verdict(token, highest)
}

/// Converts an error of tokio-postgres. If a trigger refused a stale token, the result is [`Error::StaleToken`].
pub fn to_error(error: tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(refused) => fence_table::refused(refused.code().code(), refused.message(), refused.detail()),
        None if error.is_closed() || is_io(&error) => fence_table::disconnected(&error),
        None => Error::invalid(format!("the request to PostgreSQL was not sent: {error}{}", cause(&error))),
    }
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|source| source.is::<std::io::Error>())
}

fn cause(error: &tokio_postgres::Error) -> String {
    error.source().map(|source| format!(": {source}")).unwrap_or_default()
}
