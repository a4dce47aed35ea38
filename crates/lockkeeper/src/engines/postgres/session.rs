//! Connections. A lock at session level belongs to its connection: it is dedicated to one holder, watched, and its loss
//! is the loss of the lock.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row, Statement};

use super::Level;
use crate::backoff;
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::error::{Error, Loss};
use crate::options::Options;
use crate::url::ServerUrl;

/// Connections of one keeper, for holders, waiters and idle ones.
const CONNECTIONS_MAX: usize = 200;
/// Idle ones that are kept for the next acquire.
const IDLE_MAX: usize = 16;
/// From this version on a session can be given an end when it is idle: before, a holder that is paused keeps its lock.
pub(super) const HAS_IDLE_SESSION_TIMEOUT: u32 = 140_000;

/// How to get connections, and those that nobody uses now.
pub(super) struct Sessions {
    config: Config,
    pub(super) address: String,
    pub(super) level: Level,
    pub(super) version: u32,
    timeout: Duration,
    idle: Mutex<Vec<Arc<Session>>>,
    places: Arc<Semaphore>,
}

/// One connection.
pub(super) struct Session {
    pub(super) client: Client,
    /// Ends the task that owns the socket, and with it the connection.
    task: AbortHandle,
    /// The deadline of what it holds: told when the connection is lost.
    holder: Arc<Mutex<Option<Arc<Deadline>>>>,
    /// Statements that the server has read already, by their text. There are few.
    prepared: Mutex<Vec<(String, Statement)>>,
    /// A statement that may wait for long is under way.
    waiting: std::sync::atomic::AtomicBool,
    /// Where the connection was opened. It may be dropped on a thread without a runtime.
    runtime: Handle,
    _place: Option<OwnedSemaphorePermit>,
}

impl Sessions {
    pub(super) async fn connect(url: &ServerUrl, level: Level, options: &Options) -> Result<Sessions, Error> {
        let mut sessions = Sessions {
            config: config(url, options)?,
            address: url.address(),
            level,
            version: 0,
            timeout: options.request_timeout,
            idle: Mutex::default(),
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        };
        let session = sessions.first(options.connect_timeout).await?;
        let version: String =
            one_value(&session.client, "SHOW server_version_num").await?.unwrap_or_default();
        sessions.version = version.parse().unwrap_or(0);
        Ok(sessions)
    }

    /// Tries until the server answers or the time is over.
    async fn first(&self, limit: Duration) -> Result<Session, Error> {
        let until = Moment::now().plus(limit);
        let mut attempt = 0;
        loop {
            let error = match tokio::time::timeout(until.since(Moment::now()), self.open()).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(error)) => error,
                Err(_) => self.silent(),
            };
            attempt += 1;
            let pause = backoff::pause(attempt);
            if !matches!(error, Error::Unavailable(_)) || Moment::now().plus(pause) >= until {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    pub(super) fn silent(&self) -> Error {
        Error::unavailable(format!(
            "PostgreSQL at {} does not answer in time: look whether it runs and can be reached",
            self.address
        ))
    }

    /// A connection of its own.
    pub(super) async fn open(&self) -> Result<Session, Error> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            Error::Limit(smol_str::format_smolstr!(
                "{CONNECTIONS_MAX} connections to PostgreSQL are in use: each lock that is held has one; hold fewer at a time"
            ))
        })?;
        let (client, connection) = self.config.connect(NoTls).await.map_err(|error| self.told(&error))?;
        let holder: Arc<Mutex<Option<Arc<Deadline>>>> = Arc::default();
        let of_task = Arc::clone(&holder);
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to PostgreSQL is lost, and with it what it held");
            }
            if let Some(deadline) = &*of_task.lock().unwrap_or_else(PoisonError::into_inner) {
                deadline.lose(Loss::SessionExpired);
            }
        });
        let waiting = false.into();
        let prepared = Mutex::default();
        let (task, runtime) = (task.abort_handle(), Handle::current());
        let session = Session { client, task, holder, prepared, waiting, runtime, _place: Some(place) };
        if self.level == Level::Session && self.version >= HAS_IDLE_SESSION_TIMEOUT {
            // A waiter whose process is gone must not stay in the queue.
            let set_up = "SET client_connection_check_interval = '1s'";
            session.client.batch_execute(set_up).await.map_err(|error| self.told(&error))?;
        }
        Ok(session)
    }

    /// An idle one, or a new one.
    pub(super) async fn take(&self) -> Result<Arc<Session>, Error> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(session) if session.client.is_closed() => {}
                Some(session) => return Ok(session),
                None => break,
            }
        }
        match tokio::time::timeout(self.timeout, self.open()).await {
            Ok(session) => session.map(Arc::new),
            Err(_) => Err(self.silent()),
        }
    }

    /// It holds nothing any more.
    pub(super) fn put_back(&self, session: &Arc<Session>) {
        session.hold(None);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !session.client.is_closed() {
            idle.push(Arc::clone(session));
        }
    }

    pub(super) fn close(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// A call that must be answered soon.
    pub(super) async fn soon<T>(
        &self,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(answer) => answer.map_err(|error| self.told(&error)),
            Err(_) => Err(self.silent()),
        }
    }

    /// The error in plain words, with the next step.
    pub(super) fn told(&self, error: &tokio_postgres::Error) -> Error {
        let address = &self.address;
        let text = error.as_db_error().map_or_else(|| causes(error), |db| db.message().to_owned());
        match error.code() {
            Some(code)
                if *code == SqlState::INVALID_PASSWORD
                    || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
            {
                Error::Unauthenticated(smol_str::format_smolstr!(
                    "PostgreSQL at {address} wants to know who asks ({text}): write \
                     postgres://user:password@host:port/database"
                ))
            }
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
                Error::Forbidden(smol_str::format_smolstr!(
                    "PostgreSQL at {address} does not allow it ({text}): have an administrator run {}",
                    super::token::GRANTS
                ))
            }
            Some(code) if *code == SqlState::INVALID_CATALOG_NAME => Error::invalid(format!(
                "PostgreSQL at {address}: {text}; name a database that exists: postgres://host:port/database"
            )),
            Some(code) if *code == SqlState::TOO_MANY_CONNECTIONS => Error::unavailable(format!(
                "PostgreSQL at {address} has no connection left ({text}): raise max_connections, or hold fewer locks"
            )),
            Some(_) => Error::unavailable(format!("PostgreSQL at {address} refuses: {text}")),
            None if text.contains("password missing") || text.contains("missing password") => {
                Error::Unauthenticated(smol_str::format_smolstr!(
                    "PostgreSQL at {address} wants a password: write postgres://user:password@host:port/database"
                ))
            }
            None if text.contains("unexpected message") || text.contains("invalid message") => {
                Error::invalid(format!(
                    "what answers at {address} does not speak as PostgreSQL does ({text}): look at the address and port"
                ))
            }
            None => Error::unavailable(format!(
                "PostgreSQL at {address} cannot be reached ({text}): look whether it runs, and whether it is PostgreSQL"
            )),
        }
    }
}

impl Session {
    /// From now on the loss of this connection is the loss of that.
    pub(super) fn hold(&self, deadline: Option<Arc<Deadline>>) {
        let lost = deadline.is_some() && self.client.is_closed();
        let mut holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        if let (true, Some(deadline)) = (lost, &deadline) {
            deadline.lose(Loss::SessionExpired);
        }
        *holder = deadline;
    }

    /// A query with parameters that are all text. At session level the server reads its text once; behind a pooler each
    /// statement may meet another process, so nothing can be kept there.
    pub(super) async fn query(
        &self,
        level: Level,
        sql: &str,
        parameters: &[&str],
    ) -> Result<Option<Row>, tokio_postgres::Error> {
        if level == Level::Transaction {
            let typed: Vec<(&(dyn ToSql + Sync), Type)> =
                parameters.iter().map(|parameter| (parameter as &(dyn ToSql + Sync), Type::TEXT)).collect();
            return self.client.query_typed_opt(sql, &typed).await;
        }
        let known = self.prepared().iter().find(|(text, _)| text == sql).map(|(_, known)| known.clone());
        let statement = match known {
            Some(statement) => statement,
            None => {
                let types = vec![Type::TEXT; parameters.len()];
                let statement = self.client.prepare_typed(sql, &types).await?;
                self.prepared().push((sql.to_owned(), statement.clone()));
                statement
            }
        };
        let values: Vec<&(dyn ToSql + Sync)> =
            parameters.iter().map(|parameter| parameter as &(dyn ToSql + Sync)).collect();
        self.client.query_opt(&statement, &values).await
    }

    fn prepared(&self) -> std::sync::MutexGuard<'_, Vec<(String, Statement)>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection: the server frees what it held.
    pub(super) fn kill(&self) {
        self.task.abort();
    }

    pub(super) fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, std::sync::atomic::Ordering::Release);
    }
}

impl Drop for Session {
    /// A wait that was given up leaves the server's queue.
    fn drop(&mut self) {
        if self.waiting.load(std::sync::atomic::Ordering::Acquire) {
            let cancel = self.client.cancel_token();
            let task = self.task.clone();
            self.runtime.spawn(async move {
                let cancelled = cancel.cancel_query(NoTls);
                let _ = tokio::time::timeout(Duration::from_secs(5), cancelled).await;
                task.abort();
            });
            return;
        }
        self.task.abort();
    }
}

/// The text of an error with all that is behind it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// The first value of the first row.
pub(super) async fn one_value(client: &Client, query: &str) -> Result<Option<String>, Error> {
    let answer = client.simple_query(query).await.map_err(|error| {
        Error::unavailable(format!("PostgreSQL does not answer \"{query}\": {}", causes(&error)))
    })?;
    Ok(answer.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

fn config(url: &ServerUrl, options: &Options) -> Result<Config, Error> {
    url.allow_options(&["level", "sslmode"])?;
    let mut config = Config::new();
    match url.option("sslmode") {
        None | Some("disable" | "prefer") => config.ssl_mode(SslMode::Disable),
        Some(other) => {
            return Err(Error::unsupported(format!(
                "sslmode={other} is not built into this version: put a TLS tunnel in front, and leave sslmode out"
            )));
        }
    };
    for host in &url.hosts {
        let (name, port) = host.rsplit_once(':').unwrap_or((host, "5432"));
        config.host(name.trim_start_matches('[').trim_end_matches(']'));
        config.port(port.parse().map_err(|_| Error::invalid(format!("\"{port}\" is no port")))?);
    }
    config.user(url.user.as_deref().unwrap_or("postgres"));
    if let Some(password) = &url.password {
        config.password(password);
    }
    if !url.path.is_empty() {
        config.dbname(&url.path);
    }
    config.application_name("lockkeeper");
    config.connect_timeout(options.connect_timeout);
    // A server that is gone without a word is noticed, although nothing is sent.
    config.keepalives_idle(Duration::from_secs(10));
    config.tcp_user_timeout(Duration::from_secs(30));
    Ok(config)
}
