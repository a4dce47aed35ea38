//! The gate of PostgreSQL, through sqlx, with the same table, functions and triggers as `gates::postgres`.

use lockkeeper_core::Token;
use sqlx::{Acquire, Executor, PgConnection, Postgres, Transaction};

use super::fence_table::{self, PROBE_TOKENS};
use super::{not_enforced, probe_name};
use crate::error::Error;

/// Gate of a PostgreSQL database. Stateless: the tokens are in the database.
#[derive(Debug, Clone, Copy)]
pub struct Fence;

impl Fence {
    /// SQL of the migration, for the migrations of sqlx or other tools. It is the file `src/gates/postgres.sql` of this crate.
    pub const MIGRATION: &'static str = fence_table::MIGRATION;

    /// Creates the fence table, its functions and its triggers. Idempotent.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have created them; run it again.
    pub async fn migrate(executor: impl Executor<'_, Database = Postgres>) -> Result<(), Error> {
        // One message is one transaction.
        executor.execute(sqlx::raw_sql(fence_table::MIGRATION)).await.map_err(to_error)?;
        Ok(())
    }

    /// Checks the token of a resource, and blocks other transactions on the same resource until this one ends.
    ///
    /// Call it before the first read that decides what to write.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`]: roll back and stop. [`Error::Unavailable`]: nothing happened, run the transaction again.
    ///
    /// # Cancel safety
    ///
    /// Roll back after a dropped call.
    pub async fn check(
        transaction: &mut Transaction<'_, Postgres>,
        resource: &str,
        token: Token,
    ) -> Result<(), Error> {
        let query = sqlx::query_scalar(fence_table::RAISE).bind(resource).bind(fence_table::number(token)?);
        let highest: i64 = query.fetch_one(&mut **transaction).await.map_err(to_error)?;
        fence_table::verdict(token, highest)
    }

    /// Announces the token to the triggers `lockkeeper.fence_table` and `lockkeeper.fence_row` for this transaction.
    ///
    /// If they refuse a write, the write fails: convert its error with [`to_error`].
    ///
    /// # Cancel safety
    ///
    /// Roll back after a dropped call.
    pub async fn announce(transaction: &mut Transaction<'_, Postgres>, token: Token) -> Result<(), Error> {
        let text = fence_table::number(token)?.to_string();
        sqlx::query(fence_table::ANNOUNCE).bind(text).execute(&mut **transaction).await.map_err(to_error)?;
        Ok(())
    }

    /// Returns a statement that updates one row:
    /// `UPDATE table SET a = $1, b = $2, fence_token = $4 WHERE key = $3 AND fence_token <= $4`.
    ///
    /// Bind the columns in their order, then the key, then the token. If it changes no row, the row has a higher token or
    /// does not exist.
    ///
    /// ```no_run
    /// # async fn example(pool: sqlx::PgPool, token: lockkeeper::Token) -> Result<(), sqlx::Error> {
    /// use lockkeeper::gates::sqlx::Fence;
    ///
    /// let sql = Fence::update_statement("account", &["balance"], "id");
    /// let written = sqlx::query(&sql).bind(70_i64).bind(4472_i64).bind(token.0 as i64).execute(&pool).await?;
    /// assert_eq!(written.rows_affected(), 1, "stale, or no such account: stop");
    /// # Ok(()) }
    /// ```
    pub fn update_statement(table: &str, columns: &[&str], key: &str) -> String {
        fence_table::update(table, columns, key)
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
    pub async fn probe(connection: &mut PgConnection) -> Result<(), Error> {
        let resource = probe_name();
        Fence::probe_write(connection, async |transaction, token| {
            Fence::check(transaction, &resource, token).await
        })
        .await
    }

    /// Proves the same for your own write.
    ///
    /// `write` is called three times in one transaction that is rolled back: it must accept a token, then a newer one, and
    /// then refuse the first.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if the proof fails; else the error of the write.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is committed.
    pub async fn probe_write(
        connection: &mut PgConnection,
        mut write: impl AsyncFnMut(&mut Transaction<'_, Postgres>, Token) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (older, newer) = PROBE_TOKENS;
        let mut transaction = connection.begin().await.map_err(to_error)?;
        write(&mut transaction, older).await?;
        write(&mut transaction, newer).await?;
        let stale = write(&mut transaction, older).await;
        transaction.rollback().await.map_err(to_error)?;
        match stale {
            Err(Error::StaleToken { .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(not_enforced("this PostgreSQL")),
        }
    }
}

/// Converts an error of sqlx. If a trigger refused a stale token, the result is [`Error::StaleToken`].
pub fn to_error(error: sqlx::Error) -> Error {
    match &error {
        sqlx::Error::Database(refused) => {
            let detail = refused
                .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
                .and_then(sqlx::postgres::PgDatabaseError::detail);
            fence_table::refused(&refused.code().unwrap_or_default(), refused.message(), detail)
        }
        sqlx::Error::Io(_) | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
            fence_table::disconnected(&error)
        }
        sqlx::Error::PoolTimedOut => Error::unavailable(
            "no connection of the pool became available in time: try again later, or enlarge the pool",
        ),
        _ => Error::invalid(format!("the request to PostgreSQL was not sent: {error}")),
    }
}
