//! The gate of PostgreSQL, through tokio-postgres.
//!
//! Three forms, from the plainest to the strictest:
//!
//! - [`Fence::update`]: one statement, `UPDATE .. WHERE fence_token <= $n`, on a table that has a column `fence_token`.
//! - [`Fence::check`]: inside the caller's transaction, whatever it writes. The token of a resource is a row of the table
//!   `lockkeeper.fence`, which stays locked until the transaction ends.
//! - [`Fence::announce`] and a trigger on the table: writers in any language must show a token, or are refused.

use std::error::Error as _;

use lockkeeper_core::Token;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Transaction};

use super::fence_table::{self, PROBE_TOKENS};
use super::{not_enforced, probe_name};
use crate::error::Error;

/// A value for a statement of PostgreSQL.
pub type Parameter<'a> = &'a (dyn ToSql + Sync);

/// The gate. It has no state of its own: that is in the database.
#[derive(Debug, Clone, Copy)]
pub struct Fence;

impl Fence {
    /// The migration as a text, for tools that bring their own way to run it. It is the file
    /// `src/gates/postgres.sql` of this crate.
    pub const MIGRATION: &'static str = fence_table::MIGRATION;

    /// Makes the fence table, its functions and its triggers. It can be run again and again.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have made them; run it again.
    pub async fn migrate(client: &impl GenericClient) -> Result<(), Error> {
        client.batch_execute(fence_table::MIGRATION).await.map_err(told)
    }

    /// Lets the transaction go on if no higher token was at the resource, and keeps others of the same resource out until
    /// the transaction ends. Call it before the first read that decides what to write.
    ///
    /// It takes a transaction and nothing else: outside of one, the check would be over before the write.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`]: roll back and stop. [`Error::Unavailable`]: nothing happened, run the transaction again.
    ///
    /// # Cancel safety
    ///
    /// Roll back after a call that was dropped.
    pub async fn check(transaction: &Transaction<'_>, resource: &str, token: Token) -> Result<(), Error> {
        raise(transaction, resource, token).await
    }

    /// Announces the token to the triggers `lockkeeper.fence_table` and `lockkeeper.fence_row`, until the transaction
    /// ends. Their refusal comes as an error of the write: [`told`] says it in our words.
    ///
    /// # Cancel safety
    ///
    /// Roll back after a call that was dropped.
    pub async fn announce(transaction: &Transaction<'_>, token: Token) -> Result<(), Error> {
        let text = fence_table::number(token)?.to_string();
        transaction.query_typed(fence_table::ANNOUNCE, &[(&text, Type::TEXT)]).await.map_err(told)?;
        Ok(())
    }

    /// The one-statement form:
    /// `UPDATE table SET .., fence_token = $n WHERE key = .. AND fence_token <= $n`.
    /// The table has a column `fence_token bigint`; no transaction is needed.
    ///
    /// It guards one row against a stale *write*. If what you write depends on what you have read, read it after the
    /// lock was granted, as with every gate.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`] if the row has a higher token, [`Error::Invalid`] if there is no such row.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have written.
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
        if written.map_err(told)? > 0 {
            return Ok(());
        }
        let row = client.query_opt(&fence_table::token_of_row(table, key.0), &[key.1]).await.map_err(told)?;
        let highest = row.map(|row| row.try_get(0)).transpose().map_err(told)?;
        Err(fence_table::why_no_row(table, token, highest))
    }

    /// Proves on this database that a newer token passes [`Fence::check`] and a stale one does not. It is rolled back.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if it does not hold.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is committed.
    pub async fn probe(client: &mut Client) -> Result<(), Error> {
        let resource = probe_name();
        Fence::probe_write(client, async |transaction, token| raise(transaction, &resource, token).await)
            .await
    }

    /// The same on a write of your own: it is called three times, in one transaction that is rolled back, and has to pass
    /// a token, then a newer one, and to refuse the first.
    ///
    /// ```no_run
    /// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), lockkeeper::Error> {
    /// use lockkeeper::gates::postgres::{Fence, told};
    ///
    /// // Does the trigger on `account` really refuse?
    /// Fence::probe_write(client, async |transaction, token| {
    ///     Fence::announce(transaction, token).await?;
    ///     transaction.execute("UPDATE account SET balance = balance WHERE id = 1", &[]).await.map_err(told)?;
    ///     Ok(())
    /// })
    /// .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if it does not hold; else the error of the write.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is committed.
    pub async fn probe_write(
        client: &mut Client,
        mut write: impl AsyncFnMut(&Transaction<'_>, Token) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (older, newer) = PROBE_TOKENS;
        let transaction = client.transaction().await.map_err(told)?;
        write(&transaction, older).await?;
        write(&transaction, newer).await?;
        let stale = write(&transaction, older).await;
        transaction.rollback().await.map_err(told)?;
        match stale {
            Err(Error::StaleToken { .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(not_enforced("this PostgreSQL")),
        }
    }
}

/// The check, in whatever transaction the client is.
pub(super) async fn raise(client: &impl GenericClient, resource: &str, token: Token) -> Result<(), Error> {
    let number = fence_table::number(token)?;
    // With the types named there is one round trip, and no prepared statement that a pooler could lose.
    let rows =
        client.query_typed(fence_table::RAISE, &[(&resource, Type::TEXT), (&number, Type::INT8)]).await;
    let highest = match rows.map_err(told)?.first() {
        Some(row) => row.try_get::<_, i64>(0).map_err(told)?,
        None => return Err(not_enforced("this PostgreSQL")),
    };
    fence_table::verdict(token, highest)
}

/// An error of tokio-postgres in our words: that of a trigger which refused a stale token is [`Error::StaleToken`].
pub fn told(error: tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(refused) => fence_table::refused(refused.code().code(), refused.message(), refused.detail()),
        None if error.is_closed() || is_io(&error) => fence_table::broken(&error),
        None => Error::invalid(format!("PostgreSQL was not asked: {error}{}", cause(&error))),
    }
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|source| source.is::<std::io::Error>())
}

fn cause(error: &tokio_postgres::Error) -> String {
    error.source().map(|source| format!(": {source}")).unwrap_or_default()
}
