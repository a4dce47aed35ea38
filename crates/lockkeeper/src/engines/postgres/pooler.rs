//! Is there a pooler in between that gives our connection another process of the server for each transaction? Then a lock
//! at session level belongs to whoever comes next.

use std::time::Duration;

use super::session::{Session, Sessions, one_value};
use crate::error::Error;

const ROUNDS: usize = 3;
/// A pooler with one process lets us wait while another connection has a transaction open.
const ANSWER: Duration = Duration::from_secs(2);

/// While a second connection keeps a transaction open, the first must keep its process.
pub(super) async fn is_in_between(sessions: &Sessions) -> Result<bool, Error> {
    let (ours, other) = (sessions.open().await?, sessions.open().await?);
    for _ in 0..ROUNDS {
        let before = process(&ours).await?;
        sessions.soon(other.client.batch_execute("BEGIN")).await?;
        let of_other = process(&other).await?;
        let after = match tokio::time::timeout(ANSWER, process(&ours)).await {
            Ok(after) => after?,
            Err(_) => return Ok(true),
        };
        sessions.soon(other.client.batch_execute("ROLLBACK")).await?;
        if before == of_other || before != after {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn process(session: &Session) -> Result<Option<String>, Error> {
    one_value(&session.client, "SELECT pg_backend_pid()").await
}

pub(super) fn refused() -> Error {
    Error::unsupported(
        "a pooler in transaction mode (such as PgBouncer) is between us and PostgreSQL: it gives our connection to others \
         between two statements, and the lock with it. Connect to PostgreSQL itself, use a pool in session mode, or take \
         locks at transaction level with postgres://...?level=transaction",
    )
}
