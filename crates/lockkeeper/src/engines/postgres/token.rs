//! Tokens, names, and the values of leaders, in the schema `lockkeeper` of the same database.
//!
//! Tokens are drawn from a sequence. PostgreSQL logs sequence values 32 ahead before it returns one, so a crash skips values and
//! repeats none. Names are stored in a table, because an advisory lock has only a 64-bit key: a second name with the same key is
//! detected on its first use, and refused.

use tokio_postgres::types::{ToSql, Type};

use super::session::Sessions;
use crate::error::Error;

/// The statement for an administrator if the user must not create the schema.
pub(super) const GRANTS: &str = "CREATE SCHEMA lockkeeper AUTHORIZATION the_user";

/// `CREATE SCHEMA IF NOT EXISTS` requires the privilege to create schemas even if the schema exists, so it would fail after an
/// administrator has created it.
const CREATE_SCHEMA: &str = "
    BEGIN;
    SELECT pg_advisory_xact_lock(hashtextextended('lockkeeper: set up', 0));
    DO $$ BEGIN IF to_regnamespace('lockkeeper') IS NULL THEN CREATE SCHEMA lockkeeper; END IF; END $$;
    CREATE SEQUENCE IF NOT EXISTS lockkeeper.token;
    CREATE TABLE IF NOT EXISTS lockkeeper.name (key bigint PRIMARY KEY, name text NOT NULL);
    CREATE TABLE IF NOT EXISTS lockkeeper.leader (key bigint PRIMARY KEY, token bigint NOT NULL, value text NOT NULL);
    COMMIT";

/// Creates the schema unless it exists.
pub(super) async fn create_schema(sessions: &Sessions) -> Result<(), Error> {
    let session = sessions.open().await?;
    let exists = "SELECT bool_and(to_regclass('lockkeeper.' || name) IS NOT NULL)
        FROM unnest(ARRAY['token', 'name', 'leader']) AS name";
    let query = session.client.query_typed_one(exists, &[]);
    let exists: bool = sessions.with_timeout(query).await?.get(0);
    if !exists {
        sessions.with_timeout(session.client.batch_execute(CREATE_SCHEMA)).await?;
    }
    Ok(())
}

/// Stores a name with its key, unless a name has this key already.
pub(super) async fn store_name(
    sessions: &Sessions,
    client: &tokio_postgres::Client,
    name: &str,
) -> Result<(), Error> {
    let insert =
        "INSERT INTO lockkeeper.name (key, name) VALUES (hashtextextended($1, 0), $1) ON CONFLICT DO NOTHING";
    sessions.with_timeout(client.execute_typed(insert, &[(&name, Type::TEXT)])).await.map(|_| ())
}

/// Stores the value of a leader. It is valid while its token is that of the holder.
pub(super) async fn store_value(
    sessions: &Sessions,
    client: &tokio_postgres::Client,
    name: &str,
    token: u64,
    value: &str,
) -> Result<(), Error> {
    let insert = "INSERT INTO lockkeeper.leader AS existing (key, token, value) VALUES (hashtextextended($1, 0), $2, $3)
        ON CONFLICT (key) DO UPDATE SET token = excluded.token, value = excluded.value WHERE existing.token < excluded.token";
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&name, Type::TEXT), (&token.cast_signed(), Type::INT8), (&value, Type::TEXT)];
    sessions.with_timeout(client.execute_typed(insert, &parameters)).await.map(|_| ())
}

/// The value of the last leader and its token.
pub(super) async fn stored_value(
    sessions: &Sessions,
    client: &tokio_postgres::Client,
    name: &str,
) -> Result<Option<(u64, String)>, Error> {
    let sql = "SELECT token, value FROM lockkeeper.leader WHERE key = hashtextextended($1, 0)";
    let row = sessions.with_timeout(client.query_typed_opt(sql, &[(&name, Type::TEXT)])).await?;
    Ok(row.map(|row| (row.get::<_, i64>(0).cast_unsigned(), row.get(1))))
}

/// The error for two names with the same key.
pub(super) fn collision(name: &str, other: &str) -> Error {
    Error::invalid(format!(
        "\"{name}\" and \"{other}\" have the same 64-bit key in PostgreSQL, so they would be one lock: use another name for \
         one of them"
    ))
}
