//! The fence table of PostgreSQL: the SQL and the errors shared by the gates of tokio-postgres and sqlx.

use lockkeeper_core::Token;
use smol_str::{SmolStr, format_smolstr};

use crate::error::Error;

/// The idempotent migration that creates the fence table, its functions and its triggers.
pub(crate) const MIGRATION: &str = include_str!("postgres.sql");

/// Raises the token of a resource and returns the highest.
pub(crate) const RAISE: &str = "SELECT lockkeeper.raise_fence($1, $2)";

/// Announces the token to the triggers, until the transaction ends.
pub(crate) const ANNOUNCE: &str = "SELECT set_config('lockkeeper.token', $1, true)";

/// The tokens of a probe, above all tokens in use. Its transaction is rolled back.
pub(crate) const PROBE_TOKENS: (Token, Token) = (Token(Token::MAX.0 - 1), Token::MAX);

/// Converts a token to a `bigint`, whose maximum is 2^63 - 1.
pub(crate) fn number(token: Token) -> Result<i64, Error> {
    i64::try_from(token.0)
        .map_err(|_| Error::invalid(format!("{token} is too large for a token in PostgreSQL")))
}

/// Evaluates the result of [`RAISE`].
pub(crate) fn verdict(token: Token, highest: i64) -> Result<(), Error> {
    super::admit(token, Token(highest.unsigned_abs()))
}

/// Quotes an identifier; the parts of `schema.table` separately.
pub(crate) fn quoted(name: &str) -> String {
    let parts = name.split('.').map(|part| format!("\"{}\"", part.replace('"', "\"\"")));
    parts.collect::<Vec<_>>().join(".")
}

/// `UPDATE table SET a = $1, b = $2, fence_token = $4 WHERE key = $3 AND fence_token <= $4`.
pub(crate) fn update(table: &str, columns: &[&str], key: &str) -> String {
    let mut set = String::new();
    for (index, column) in columns.iter().enumerate() {
        set.push_str(&format!("{} = ${}, ", quoted(column), index + 1));
    }
    let (key_at, token_at) = (columns.len() + 1, columns.len() + 2);
    format!(
        "UPDATE {} SET {set}fence_token = ${token_at} WHERE {} = ${key_at} AND COALESCE(fence_token, 0) <= ${token_at}",
        quoted(table),
        quoted(key)
    )
}

/// The query that finds out why an [`update`] changed no row.
pub(crate) fn token_of_row(table: &str, key: &str) -> String {
    format!("SELECT COALESCE(fence_token, 0)::bigint FROM {} WHERE {} = $1", quoted(table), quoted(key))
}

/// Evaluates the result of [`token_of_row`].
pub(crate) fn missing_row(table: &str, token: Token, highest: Option<i64>) -> Error {
    match highest {
        None => Error::invalid(format!(
            "{table} has no row with this key, so nothing was written: insert it first"
        )),
        Some(highest) => verdict(token, highest).err().unwrap_or_else(|| {
            Error::unavailable(format!("the row of {table} was changed concurrently: write again"))
        }),
    }
}

/// Converts an error of the server, with the next step.
pub(crate) fn refused(code: &str, message: &str, detail: Option<&str>) -> Error {
    let text: SmolStr = match code {
        "LK412" => {
            let last = detail.and_then(|detail| detail.strip_prefix("last_token=")?.parse().ok());
            return Error::StaleToken { last_token: Token(last.unwrap_or_default()) };
        }
        "LK428" => {
            return Error::invalid(format!(
                "{message}: call Fence::announce with the guard's token before the write, in the same transaction"
            ));
        }
        // Undefined function, table or schema.
        "42883" | "42P01" | "3F000" if message.contains("lockkeeper") || code == "3F000" => {
            return Error::invalid(format!(
                "this database has no fence table ({message}): run Fence::migrate once, or psql -f postgres.sql"
            ));
        }
        "42501" => {
            return Error::Forbidden(format_smolstr!(
                "permission denied by PostgreSQL ({message}): let an administrator run GRANT USAGE ON SCHEMA lockkeeper TO the user"
            ));
        }
        // Serialization failure, deadlock.
        "40001" | "40P01" => format_smolstr!(
            "conflict with another transaction ({message}): nothing was written, run the transaction again"
        ),
        // Connection exceptions, insufficient resources, operator intervention: a later retry may succeed.
        _ if ["08", "53", "57"].iter().any(|class| code.starts_with(class)) => {
            format_smolstr!(
                "PostgreSQL is temporarily unavailable ({message}): run the transaction again later"
            )
        }
        _ => {
            return Error::invalid(format!("PostgreSQL rejected the statement: {message} (SQLSTATE {code})"));
        }
    };
    Error::Unavailable(text)
}

/// The error for a lost connection.
pub(crate) fn disconnected(error: &dyn std::fmt::Display) -> Error {
    Error::unavailable(format!(
        "the connection to PostgreSQL is lost ({error}): uncommitted changes are rolled back; connect again"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_quoted() {
        assert_eq!(
            update("app.account", &["balance"], "id"),
            "UPDATE \"app\".\"account\" SET \"balance\" = $1, fence_token = $3 WHERE \"id\" = $2 \
             AND COALESCE(fence_token, 0) <= $3"
        );
        assert_eq!(quoted("a\"; DROP TABLE b; --"), "\"a\"\"; DROP TABLE b; --\"");
    }

    #[test]
    fn server_errors_name_the_next_step() {
        let stale = refused("LK412", "the token is stale", Some("last_token=43"));
        assert_eq!(stale, Error::StaleToken { last_token: Token(43) });
        let missing = refused("42883", "function lockkeeper.raise_fence(text, bigint) does not exist", None);
        assert!(missing.to_string().contains("Fence::migrate"));
        assert!(refused("40001", "could not serialize", None).is_retryable());
        assert_eq!(refused("42501", "permission denied", None).code(), "forbidden");
        assert_eq!(number(Token(u64::MAX)).unwrap_err().code(), "invalid");
    }
}
