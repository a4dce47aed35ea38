//! Detection of a pooler in transaction mode. It assigns a backend process to a client for one transaction at a time, so a
//! session-level lock passes on to the next client of the process.

use std::time::Duration;

use super::session::{Session, Sessions, first_value};
use crate::error::Error;

const ROUNDS: usize = 3;
/// A pooler with a single backend process does not answer while another connection has an open transaction.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks that a connection keeps its backend process while another connection has an open transaction.
pub(super) async fn is_detected(sessions: &Sessions) -> Result<bool, Error> {
    let (ours, other) = (sessions.open().await?, sessions.open().await?);
    for _ in 0..ROUNDS {
        let before = backend_pid(&ours).await?;
        sessions.with_timeout(other.client.batch_execute("BEGIN")).await?;
        let other_pid = backend_pid(&other).await?;
        let after = match tokio::time::timeout(ANSWER_TIMEOUT, backend_pid(&ours)).await {
            Ok(after) => after?,
            Err(_) => return Ok(true),
        };
        sessions.with_timeout(other.client.batch_execute("ROLLBACK")).await?;
        if before == other_pid || before != after {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn backend_pid(session: &Session) -> Result<Option<String>, Error> {
    first_value(&session.client, "SELECT pg_backend_pid()").await
}

pub(super) fn refused() -> Error {
    Error::unsupported(
        "the connection goes through a pooler in transaction mode (such as PgBouncer), which passes a session-level lock on to \
         other clients: connect to PostgreSQL directly, use a pool in session mode, or use transaction-level locks with \
         postgres://...?level=transaction",
    )
}
