//! Tokens, names, and what leaders stand for: in tables of the same database.
//!
//! The token is a sequence: `nextval` is on disk before it is answered (PostgreSQL writes ahead by 32), so a crash skips
//! numbers and repeats none. The names are a table, because an advisory lock has only a number of 64 bits: two names
//! with the same number are found out when the second is used first, and refused.

use tokio_postgres::types::{ToSql, Type};

use super::session::Sessions;
use crate::error::Error;

/// What an administrator has to run if the user may not create anything.
pub(super) const GRANTS: &str = "CREATE SCHEMA lockkeeper AUTHORIZATION the_user";

/// `CREATE SCHEMA IF NOT EXISTS` wants the right to create one even where it exists: then an administrator's would not help.
const SET_UP: &str = "
    BEGIN;
    SELECT pg_advisory_xact_lock(hashtextextended('lockkeeper: set up', 0));
    DO $$ BEGIN IF to_regnamespace('lockkeeper') IS NULL THEN CREATE SCHEMA lockkeeper; END IF; END $$;
    CREATE SEQUENCE IF NOT EXISTS lockkeeper.token;
    CREATE TABLE IF NOT EXISTS lockkeeper.name (key bigint PRIMARY KEY, name text NOT NULL);
    CREATE TABLE IF NOT EXISTS lockkeeper.leader (key bigint PRIMARY KEY, token bigint NOT NULL, value text NOT NULL);
    COMMIT";

/// Makes sure that all of it is there.
pub(super) async fn set_up(sessions: &Sessions) -> Result<(), Error> {
    let session = sessions.open().await?;
    let there = "SELECT bool_and(to_regclass('lockkeeper.' || name) IS NOT NULL)
        FROM unnest(ARRAY['token', 'name', 'leader']) AS name";
    let query = session.client.query_typed_one(there, &[]);
    let is_there: bool = sessions.soon(query).await?.get(0);
    if !is_there {
        sessions.soon(session.client.batch_execute(SET_UP)).await?;
    }
    Ok(())
}

/// The name is stored beside its number. Nothing happens if the number is taken.
pub(super) async fn store_name(
    sessions: &Sessions,
    client: &tokio_postgres::Client,
    name: &str,
) -> Result<(), Error> {
    let insert =
        "INSERT INTO lockkeeper.name (key, name) VALUES (hashtextextended($1, 0), $1) ON CONFLICT DO NOTHING";
    sessions.soon(client.execute_typed(insert, &[(&name, Type::TEXT)])).await.map(|_| ())
}

/// What the holder stands for, for all to see. It counts while its token is that of the holder.
pub(super) async fn store_value(
    sessions: &Sessions,
    client: &tokio_postgres::Client,
    name: &str,
    token: u64,
    value: &str,
) -> Result<(), Error> {
    let insert = "INSERT INTO lockkeeper.leader AS known (key, token, value) VALUES (hashtextextended($1, 0), $2, $3)
        ON CONFLICT (key) DO UPDATE SET token = excluded.token, value = excluded.value WHERE known.token < excluded.token";
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&name, Type::TEXT), (&token.cast_signed(), Type::INT8), (&value, Type::TEXT)];
    sessions.soon(client.execute_typed(insert, &parameters)).await.map(|_| ())
}

/// What the holder with this token stands for, if it has said so.
pub(super) async fn stored_value(
    sessions: &Sessions,
    client: &tokio_postgres::Client,
    name: &str,
) -> Result<Option<(u64, String)>, Error> {
    let sql = "SELECT token, value FROM lockkeeper.leader WHERE key = hashtextextended($1, 0)";
    let row = sessions.soon(client.query_typed_opt(sql, &[(&name, Type::TEXT)])).await?;
    Ok(row.map(|row| (row.get::<_, i64>(0).cast_unsigned(), row.get(1))))
}

/// Two names have the same number.
pub(super) fn collision(name: &str, other: &str) -> Error {
    Error::invalid(format!(
        "\"{name}\" and \"{other}\" have the same number of 64 bits in PostgreSQL, so they would be one lock: use another \
         name for one of them"
    ))
}
