//! Take, renew and release: each is one statement.

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

/// What is held, and by which connection.
#[derive(Clone)]
pub(crate) struct Lease {
    session: Arc<Session>,
    /// The server's process: another one means that a pooler stands in between, and that the lock is not ours.
    process: i32,
    name: String,
    mode: Mode,
}

/// What a statement answered.
enum Answer {
    Granted { token: u64, process: i32 },
    Busy,
    UnknownName,
    OtherName(String),
}

pub(super) async fn take(
    sessions: &Sessions,
    request: &AcquireRequest,
    wait: Duration,
    owner: &str,
) -> Result<Taken<Lease>, Error> {
    let name = request.locks.as_slice()[0].as_str();
    // Dropped before it is put back, the connection ends, and with it whatever it got.
    let session = sessions.take().await?;
    let taking = Taking { sessions, session: &session, request, name, owner };
    let mut sent = Moment::now();
    let mut answer = taking.take(wait).await?;
    if matches!(answer, Answer::UnknownName) {
        token::store_name(sessions, &session.client, name).await?;
        sent = Moment::now();
        answer = taking.take(wait).await?;
    }
    match answer {
        Answer::Granted { token, process } => {
            if let Some(value) = &request.value {
                token::store_value(sessions, &session.client, name, token, value).await?;
            }
            let deadline = Arc::new(Deadline::new(sent, request.ttl));
            session.hold(Some(Arc::clone(&deadline)));
            let lease = Lease { session, process, name: name.to_owned(), mode: request.mode };
            Ok(Taken::Granted { lease, token: Some(Token(token)), deadline })
        }
        Answer::Busy => {
            sessions.put_back(&session);
            Ok(Taken::Busy { free_in: None })
        }
        Answer::UnknownName => Err(Error::unavailable(format!(
            "the name of \"{name}\" could not be stored in lockkeeper.name: look at the rights on that table"
        ))),
        Answer::OtherName(other) => {
            sessions.put_back(&session);
            Err(token::collision(name, &other))
        }
    }
}

struct Taking<'a> {
    sessions: &'a Sessions,
    session: &'a Session,
    request: &'a AcquireRequest,
    name: &'a str,
    owner: &'a str,
}

impl Taking<'_> {
    async fn take(&self, wait: Duration) -> Result<Answer, Error> {
        match self.sessions.level {
            Level::Session => self.statement(wait).await,
            Level::Transaction => {
                self.sessions.soon(self.session.client.batch_execute("BEGIN")).await?;
                let answer = self.statement(wait).await;
                if !matches!(answer, Ok(Answer::Granted { .. })) {
                    self.sessions.soon(self.session.client.batch_execute("ROLLBACK")).await?;
                }
                answer
            }
        }
    }

    async fn statement(&self, wait: Duration) -> Result<Answer, Error> {
        let tries = wait.is_zero();
        let sql = take_statement(self.sessions, self.request.mode, tries);
        let ttl = idle_limit(self.request.ttl);
        let lock_timeout = wait::lock_timeout(wait);
        let parameters = [self.name, &ttl, self.owner, &lock_timeout];
        let used = if tries { &parameters[..3] } else { &parameters[..] };
        let query = self.session.query(self.sessions.level, &sql, used);
        let row = if tries {
            tokio::time::timeout(self.request.ttl, query).await.map_err(|_| self.sessions.silent())?
        } else {
            self.session.set_waiting(true);
            let row = query.await;
            self.session.set_waiting(false);
            row
        };
        let row = match row {
            Ok(row) => row,
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => return Ok(Answer::Busy),
            Err(error) => return Err(self.sessions.told(&error)),
        };
        let Some(row) = row else { return Ok(Answer::UnknownName) };
        let (known, got, process): (&str, bool, i32) = (row.get(0), row.get(1), row.get(3));
        let token: Option<i64> = row.get(2);
        Ok(match (got, token.and_then(|token| u64::try_from(token).ok())) {
            _ if known != self.name => Answer::OtherName(known.to_owned()),
            (true, Some(token)) => Answer::Granted { token, process },
            _ => Answer::Busy,
        })
    }
}

/// The name is looked at first, the lock taken second, the token drawn third: each query within the next, so that the
/// order is certain, and none is merged into another (`OFFSET 0`).
fn take_statement(sessions: &Sessions, mode: Mode, tries: bool) -> String {
    let (scope, local, idle) = match sessions.level {
        Level::Session if sessions.version >= HAS_IDLE_SESSION_TIMEOUT => {
            ("", "false", "idle_session_timeout")
        }
        // A setting that nobody reads: this version has none.
        Level::Session => ("", "false", "lockkeeper.idle_session_timeout"),
        Level::Transaction => ("xact_", "true", "idle_in_transaction_session_timeout"),
    };
    let shared = if mode == Mode::Shared { "_shared" } else { "" };
    let take = match tries {
        true => format!("WHEN name = $1 THEN pg_try_advisory_{scope}lock{shared}(key)"),
        // Its answer is void: whatever it is, it is there.
        false => format!(
            "WHEN set_config('lock_timeout', $4, {local}) IS NULL THEN false
             WHEN name = $1 THEN pg_advisory_{scope}lock{shared}(key)::text IS NOT NULL"
        ),
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

fn idle_limit(ttl: Duration) -> String {
    format!("{}ms", ttl.as_millis().clamp(1, i32::MAX as u128))
}

/// The server counts the time to live from the last statement: any will do.
pub(super) async fn renew(sessions: &Sessions, lease: &Lease) -> Result<bool, Error> {
    if lease.session.client.is_closed() {
        return Ok(false);
    }
    let row = match lease.session.client.query_typed_one("SELECT pg_backend_pid()", &[]).await {
        Ok(row) => row,
        Err(_) if lease.session.client.is_closed() => return Ok(false),
        // A transaction that the server has ended, for example: what it held is gone.
        Err(error) if error.as_db_error().is_some() => {
            lease.session.kill();
            return Ok(false);
        }
        Err(error) => return Err(sessions.told(&error)),
    };
    Ok(row.get::<_, i32>(0) == lease.process)
}

pub(super) async fn release(sessions: &Sessions, lease: &Lease) -> Result<bool, Error> {
    let session = &lease.session;
    if session.client.is_closed() {
        return Ok(false);
    }
    // From here on the end of the connection is no loss.
    session.hold(None);
    let released = match sessions.level {
        Level::Session => unlock(sessions, session, lease).await,
        Level::Transaction => sessions.soon(session.client.batch_execute("COMMIT")).await.map(|()| true),
    };
    match released {
        Ok(released) => {
            sessions.put_back(session);
            Ok(released)
        }
        Err(error) => {
            // The server frees it when it notices that the connection is gone.
            session.kill();
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
    let row = sessions.soon(session.query(Level::Session, &sql, &[&lease.name])).await?;
    Ok(row.is_some_and(|row| row.get(0)))
}
