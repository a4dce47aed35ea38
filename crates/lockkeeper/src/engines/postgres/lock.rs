//! Take, renew and release: one statement each.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Token;
use tokio_postgres::error::SqlState;

use super::session::{HAS_IDLE_SESSION_TIMEOUT, Session, Sessions};
use super::{Level, token, wait};
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::engines::AcquireRequest;
use crate::engines::runtime::leases::Taken;
use crate::error::Error;
use crate::mode::Mode;

/// A held lock and its connection.
#[derive(Clone)]
pub(crate) struct Lease {
    session: Arc<Session>,
    /// The backend process of the connection. If a renewal reports another one, a pooler is in between, and the lock is lost.
    backend_pid: i32,
    name: String,
    mode: Mode,
}

/// The answer to a take.
enum Answer {
    Granted {
        token: u64,
        backend_pid: i32,
    },
    Busy,
    /// The name is not in `lockkeeper.name` yet.
    UnknownName,
    /// Another name has the same key.
    Collision(String),
}

pub(super) async fn take(
    sessions: &Sessions,
    request: &AcquireRequest,
    wait: Duration,
    owner: &str,
) -> Result<Taken<Lease>, Error> {
    let name = request.locks.as_slice()[0].as_str();
    // If the session is dropped before it is put back, its connection is closed, which releases whatever it acquired.
    let session = sessions.take().await?;
    let attempt = Attempt { sessions, session: &session, request, name, owner };
    let mut sent = Moment::now();
    let mut answer = attempt.take(wait).await?;
    if matches!(answer, Answer::UnknownName) {
        token::store_name(sessions, &session.client, name).await?;
        sent = Moment::now();
        answer = attempt.take(wait).await?;
    }
    match answer {
        Answer::Granted { token, backend_pid } => {
            if let Some(value) = &request.value {
                token::store_value(sessions, &session.client, name, token, value).await?;
            }
            let deadline = Arc::new(Deadline::new(sent, request.ttl));
            session.set_deadline(Some(Arc::clone(&deadline)));
            let lease = Lease { session, backend_pid, name: name.to_owned(), mode: request.mode };
            Ok(Taken::Granted { lease, token: Some(Token(token)), deadline })
        }
        Answer::Busy => {
            sessions.put_back(&session);
            Ok(Taken::Busy { free_in: None })
        }
        Answer::UnknownName => Err(Error::unavailable(format!(
            "the name \"{name}\" is missing in lockkeeper.name after it was stored: check row-level security, rules and \
             triggers of that table"
        ))),
        Answer::Collision(other) => {
            sessions.put_back(&session);
            Err(token::collision(name, &other))
        }
    }
}

/// A take on a connection.
struct Attempt<'a> {
    sessions: &'a Sessions,
    session: &'a Session,
    request: &'a AcquireRequest,
    name: &'a str,
    owner: &'a str,
}

impl Attempt<'_> {
    async fn take(&self, wait: Duration) -> Result<Answer, Error> {
        match self.sessions.level {
            Level::Session => self.execute(wait).await,
            Level::Transaction => {
                self.sessions.with_timeout(self.session.client.batch_execute("BEGIN")).await?;
                let answer = self.execute(wait).await;
                if !matches!(answer, Ok(Answer::Granted { .. })) {
                    self.sessions.with_timeout(self.session.client.batch_execute("ROLLBACK")).await?;
                }
                answer
            }
        }
    }

    async fn execute(&self, wait: Duration) -> Result<Answer, Error> {
        let waits = !wait.is_zero();
        let sql = take_statement(self.sessions, self.request.mode, waits);
        let ttl = idle_timeout(self.request.ttl);
        let lock_timeout = wait::lock_timeout(wait);
        let parameters = [self.name, &ttl, self.owner, &lock_timeout];
        let used = if waits { &parameters[..] } else { &parameters[..3] };
        let query = self.session.query(self.sessions.level, &sql, used);
        let row = if !waits {
            tokio::time::timeout(self.request.ttl, query).await.map_err(|_| self.sessions.no_answer())?
        } else {
            self.session.set_waiting(true);
            let row = query.await;
            self.session.set_waiting(false);
            row
        };
        let row = match row {
            Ok(row) => row,
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => return Ok(Answer::Busy),
            Err(error) => return Err(self.sessions.convert_error(&error)),
        };
        let Some(row) = row else { return Ok(Answer::UnknownName) };
        let (stored_name, granted, backend_pid): (&str, bool, i32) = (row.get(0), row.get(1), row.get(3));
        let token: Option<i64> = row.get(2);
        Ok(match (granted, token.and_then(|token| u64::try_from(token).ok())) {
            _ if stored_name != self.name => Answer::Collision(stored_name.to_owned()),
            (true, Some(token)) => Answer::Granted { token, backend_pid },
            _ => Answer::Busy,
        })
    }
}

/// The statement checks the name, then takes the lock, then draws the token. The queries are nested to guarantee this order, and
/// `OFFSET 0` prevents the planner from merging them.
fn take_statement(sessions: &Sessions, mode: Mode, waits: bool) -> String {
    let (scope, local, idle) = match sessions.level {
        Level::Session if sessions.version >= HAS_IDLE_SESSION_TIMEOUT => {
            ("", "false", "idle_session_timeout")
        }
        // A placeholder without effect, because this version has no such setting.
        Level::Session => ("", "false", "lockkeeper.idle_session_timeout"),
        Level::Transaction => ("xact_", "true", "idle_in_transaction_session_timeout"),
    };
    let shared = if mode == Mode::Shared { "_shared" } else { "" };
    let take = if waits {
        // The function returns void, which is never NULL as text.
        format!(
            "WHEN set_config('lock_timeout', $4, {local}) IS NULL THEN false
             WHEN name = $1 THEN pg_advisory_{scope}lock{shared}(key)::text IS NOT NULL"
        )
    } else {
        format!("WHEN name = $1 THEN pg_try_advisory_{scope}lock{shared}(key)")
    };
    format!(
        "SELECT name, ok, token, pg_backend_pid(), set_config('{idle}', CASE WHEN ok THEN $2 ELSE '0' END, {local}),
           set_config('application_name', CASE WHEN ok THEN
             left($3, 34) || ' #' || token || ' @' || extract(epoch FROM now())::bigint ELSE 'lockkeeper' END, {local})
         FROM (
           SELECT name, ok, CASE WHEN ok THEN nextval('lockkeeper.token') END AS token FROM (
             SELECT name, CASE {take} ELSE false END AS ok FROM lockkeeper.name
             WHERE key = hashtextextended($1, 0) OFFSET 0) AS taken
           OFFSET 0) AS drawn"
    )
}

fn idle_timeout(ttl: Duration) -> String {
    format!("{}ms", ttl.as_millis().clamp(1, i32::MAX as u128))
}

/// Renews a lease: the server counts the idle timeout from the last statement, so any statement will do.
pub(super) async fn renew(sessions: &Sessions, lease: &Lease) -> Result<bool, Error> {
    if lease.session.client.is_closed() {
        return Ok(false);
    }
    let row = match lease.session.client.query_typed_one("SELECT pg_backend_pid()", &[]).await {
        Ok(row) => row,
        Err(_) if lease.session.client.is_closed() => return Ok(false),
        // For example, the server has aborted the transaction: its locks are released.
        Err(error) if error.as_db_error().is_some() => {
            lease.session.disconnect();
            return Ok(false);
        }
        Err(error) => return Err(sessions.convert_error(&error)),
    };
    Ok(row.get::<_, i32>(0) == lease.backend_pid)
}

pub(super) async fn release(sessions: &Sessions, lease: &Lease) -> Result<bool, Error> {
    let session = &lease.session;
    if session.client.is_closed() {
        return Ok(false);
    }
    // From here on, the end of the connection is not reported as a loss.
    session.set_deadline(None);
    let released = match sessions.level {
        Level::Session => unlock(sessions, session, lease).await,
        Level::Transaction => {
            sessions.with_timeout(session.client.batch_execute("COMMIT")).await.map(|()| true)
        }
    };
    match released {
        Ok(released) => {
            sessions.put_back(session);
            Ok(released)
        }
        Err(error) => {
            // The server releases the lock when it detects the disconnect.
            session.disconnect();
            Err(error)
        }
    }
}

async fn unlock(sessions: &Sessions, session: &Session, lease: &Lease) -> Result<bool, Error> {
    let shared = if lease.mode == Mode::Shared { "_shared" } else { "" };
    let idle = if sessions.version >= HAS_IDLE_SESSION_TIMEOUT { "" } else { "lockkeeper." };
    let sql = format!(
        "SELECT pg_advisory_unlock{shared}(hashtextextended($1, 0)), set_config('{idle}idle_session_timeout', '0', false),
         set_config('application_name', 'lockkeeper', false)"
    );
    let row = sessions.with_timeout(session.query(Level::Session, &sql, &[&lease.name])).await?;
    Ok(row.is_some_and(|row| row.get(0)))
}
