//! Tokens and names, in tables of the same database.
//!
//! The token is a sequence: `nextval` is on disk before it is answered (PostgreSQL writes ahead by 32), so a crash skips
//! numbers and repeats none. The names are a table, because an advisory lock has only a number of 64 bits: two names
//! with the same number are found out when the second is used first, and refused.

use super::session::Sessions;
use crate::error::Error;

/// What an administrator has to run if the user may not create anything.
pub(super) const GRANTS: &str = "CREATE SCHEMA lockkeeper AUTHORIZATION the_user";

const SET_UP: &str = "
    BEGIN;
    SELECT pg_advisory_xact_lock(hashtextextended('lockkeeper: set up', 0));
    CREATE SCHEMA IF NOT EXISTS lockkeeper;
    CREATE SEQUENCE IF NOT EXISTS lockkeeper.token;
    CREATE TABLE IF NOT EXISTS lockkeeper.name (key bigint PRIMARY KEY, name text NOT NULL);
    COMMIT";

/// Makes sure that both are there.
pub(super) async fn set_up(sessions: &Sessions) -> Result<(), Error> {
    let session = sessions.open().await?;
    let there =
        "SELECT to_regclass('lockkeeper.token') IS NOT NULL AND to_regclass('lockkeeper.name') IS NOT NULL";
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
    let text = tokio_postgres::types::Type::TEXT;
    sessions.soon(client.execute_typed(insert, &[(&name, text)])).await.map(|_| ())
}

/// Two names have the same number.
pub(super) fn collision(name: &str, other: &str) -> Error {
    Error::invalid(format!(
        "\"{name}\" and \"{other}\" have the same number of 64 bits in PostgreSQL, so they would be one lock: use another \
         name for one of them"
    ))
}
