//! The gate of PostgreSQL, through sqlx: the same table, the same functions and the same triggers as
//! `gates::postgres`.

use lockkeeper_core::Token;
use sqlx::{Acquire, Executor, PgConnection, Postgres, Transaction};

use super::fence_table::{self, PROBE_TOKENS};
use super::{not_enforced, probe_name};
use crate::error::Error;

/// The gate. It has no state of its own: that is in the database.
#[derive(Debug, Clone, Copy)]
pub struct Fence;

impl Fence {
    /// The migration as a text, for sqlx's own migrations or other tools. It is the file `src/gates/postgres.sql` of this
    /// crate.
    pub const MIGRATION: &'static str = fence_table::MIGRATION;

    /// Makes the fence table, its functions and its triggers. It can be run again and again.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have made them; run it again.
    pub async fn migrate(executor: impl Executor<'_, Database = Postgres>) -> Result<(), Error> {
        // As one message: it is one transaction.
        executor.execute(sqlx::raw_sql(fence_table::MIGRATION)).await.map_err(told)?;
        Ok(())
    }

    /// Lets the transaction go on if no higher token was at the resource, and keeps others of the same resource out until
    /// the transaction ends. Call it before the first read that decides what to write.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`]: roll back and stop. [`Error::Unavailable`]: nothing happened, run the transaction again.
    ///
    /// # Cancel safety
    ///
    /// Roll back after a call that was dropped.
    pub async fn check(
        transaction: &mut Transaction<'_, Postgres>,
        resource: &str,
        token: Token,
    ) -> Result<(), Error> {
        let query = sqlx::query_scalar(fence_table::RAISE).bind(resource).bind(fence_table::number(token)?);
        let highest: i64 = query.fetch_one(&mut **transaction).await.map_err(told)?;
        fence_table::verdict(token, highest)
    }

    /// Announces the token to the triggers `lockkeeper.fence_table` and `lockkeeper.fence_row`, until the transaction
    /// ends. Their refusal comes as an error of the write: [`told`] says it in our words.
    ///
    /// # Cancel safety
    ///
    /// Roll back after a call that was dropped.
    pub async fn announce(transaction: &mut Transaction<'_, Postgres>, token: Token) -> Result<(), Error> {
        let text = fence_table::number(token)?.to_string();
        sqlx::query(fence_table::ANNOUNCE).bind(text).execute(&mut **transaction).await.map_err(told)?;
        Ok(())
    }

    /// The one-statement form, as a text to bind values to:
    /// `UPDATE table SET a = $1, b = $2, fence_token = $4 WHERE key = $3 AND fence_token <= $4`: the columns in their order,
    /// then the key, then the token. If it changes no row, the row has a higher token, or there is none.
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

    /// Proves on this database that a newer token passes [`Fence::check`] and a stale one does not. It is rolled back.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if it does not hold.
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

    /// The same on a write of your own: it is called three times, in one transaction that is rolled back, and has to pass
    /// a token, then a newer one, and to refuse the first.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if it does not hold; else the error of the write.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is committed.
    pub async fn probe_write(
        connection: &mut PgConnection,
        mut write: impl AsyncFnMut(&mut Transaction<'_, Postgres>, Token) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (older, newer) = PROBE_TOKENS;
        let mut transaction = connection.begin().await.map_err(told)?;
        write(&mut transaction, older).await?;
        write(&mut transaction, newer).await?;
        let stale = write(&mut transaction, older).await;
        transaction.rollback().await.map_err(told)?;
        match stale {
            Err(Error::StaleToken { .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(not_enforced("this PostgreSQL")),
        }
    }
}

/// An error of sqlx in our words: that of a trigger which refused a stale token is [`Error::StaleToken`].
pub fn told(error: sqlx::Error) -> Error {
    match &error {
        sqlx::Error::Database(refused) => {
            let detail = refused
                .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
                .and_then(sqlx::postgres::PgDatabaseError::detail);
            fence_table::refused(&refused.code().unwrap_or_default(), refused.message(), detail)
        }
        sqlx::Error::Io(_) | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
            fence_table::broken(&error)
        }
        sqlx::Error::PoolTimedOut => Error::unavailable(
            "no connection of the pool came free in time: try again later, or make the pool larger",
        ),
        _ => Error::invalid(format!("PostgreSQL was not asked: {error}")),
    }
}
