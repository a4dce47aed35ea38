//! Connections. A session-level lock belongs to its connection: each holder has its own, and loses the lock with it.

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

/// The limit of connections of a keeper: of holders, of waiters, and idle ones.
const CONNECTIONS_MAX: usize = 200;
/// The limit of idle connections, which are kept for later acquires.
const IDLE_MAX: usize = 16;
/// The timeout of cancelling a wait in the server's queue.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// The first version with `idle_session_timeout`. In earlier ones, a paused holder keeps its lock.
pub(super) const HAS_IDLE_SESSION_TIMEOUT: u32 = 140_000;

/// The connections of a keeper: opens them, and keeps idle ones.
pub(super) struct Sessions {
    config: Config,
    pub(super) address: String,
    pub(super) level: Level,
    pub(super) version: u32,
    timeout: Duration,
    idle: Mutex<Vec<Arc<Session>>>,
    permits: Arc<Semaphore>,
}

/// One connection.
pub(super) struct Session {
    pub(super) client: Client,
    /// The task that owns the socket. Aborting it closes the connection.
    task: AbortHandle,
    /// The deadline of the held lock, which is marked as lost when the connection is lost.
    deadline: Arc<Mutex<Option<Arc<Deadline>>>>,
    /// Prepared statements by their text. There are few.
    prepared: Mutex<Vec<(String, Statement)>>,
    /// A statement is waiting in the server's queue.
    waiting: std::sync::atomic::AtomicBool,
    /// The runtime that the connection was opened on, because it may be dropped on a thread without one.
    runtime: Handle,
    _permit: Option<OwnedSemaphorePermit>,
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
            permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        };
        let session = sessions.open_first(options.connect_timeout).await?;
        let version: String =
            first_value(&session.client, "SHOW server_version_num").await?.unwrap_or_default();
        sessions.version = version.parse().unwrap_or(0);
        Ok(sessions)
    }

    /// Opens a connection, with retries until the server answers or the timeout has passed.
    async fn open_first(&self, limit: Duration) -> Result<Session, Error> {
        let until = Moment::now().plus(limit);
        let mut attempt = 0;
        loop {
            let error = match tokio::time::timeout(until.since(Moment::now()), self.open()).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(error)) => error,
                Err(_) => self.no_answer(),
            };
            attempt += 1;
            let pause = backoff::pause(attempt);
            if !matches!(error, Error::Unavailable(_)) || Moment::now().plus(pause) >= until {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    pub(super) fn no_answer(&self) -> Error {
        Error::unavailable(format!(
            "PostgreSQL at {} did not answer in time: check that it is running and reachable",
            self.address
        ))
    }

    /// Opens a connection.
    pub(super) async fn open(&self) -> Result<Session, Error> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            Error::Limit(smol_str::format_smolstr!(
                "all {CONNECTIONS_MAX} connections to PostgreSQL are in use, one for each held lock: hold fewer locks at a time"
            ))
        })?;
        let (client, connection) =
            self.config.connect(NoTls).await.map_err(|error| self.convert_error(&error))?;
        let deadline: Arc<Mutex<Option<Arc<Deadline>>>> = Arc::default();
        let task_deadline = Arc::clone(&deadline);
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "lost a connection to PostgreSQL and the lock that it held");
            }
            if let Some(deadline) = &*task_deadline.lock().unwrap_or_else(PoisonError::into_inner) {
                deadline.lose(Loss::SessionExpired);
            }
        });
        let waiting = false.into();
        let prepared = Mutex::default();
        let (task, runtime) = (task.abort_handle(), Handle::current());
        let session = Session { client, task, deadline, prepared, waiting, runtime, _permit: Some(permit) };
        if self.level == Level::Session && self.version >= HAS_IDLE_SESSION_TIMEOUT {
            // Removes a waiter whose client has crashed from the queue.
            let set = "SET client_connection_check_interval = '1s'";
            session.client.batch_execute(set).await.map_err(|error| self.convert_error(&error))?;
        }
        Ok(session)
    }

    /// Takes an idle connection, or opens one.
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
            Err(_) => Err(self.no_answer()),
        }
    }

    /// Returns a connection that holds no lock.
    pub(super) fn put_back(&self, session: &Arc<Session>) {
        session.set_deadline(None);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !session.client.is_closed() {
            idle.push(Arc::clone(session));
        }
    }

    pub(super) fn close(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Applies the request timeout.
    pub(super) async fn with_timeout<T>(
        &self,
        request: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(self.timeout, request).await {
            Ok(answer) => answer.map_err(|error| self.convert_error(&error)),
            Err(_) => Err(self.no_answer()),
        }
    }

    /// Converts an error of the client library, and adds the next step.
    pub(super) fn convert_error(&self, error: &tokio_postgres::Error) -> Error {
        let address = &self.address;
        let text = error.as_db_error().map_or_else(|| with_causes(error), |db| db.message().to_owned());
        match error.code() {
            Some(code)
                if *code == SqlState::INVALID_PASSWORD
                    || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
            {
                Error::Unauthenticated(smol_str::format_smolstr!(
                    "PostgreSQL at {address} rejects the login ({text}): check postgres://user:password@host:port/database"
                ))
            }
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
                Error::Forbidden(smol_str::format_smolstr!(
                    "PostgreSQL at {address} denies permission ({text}): have an administrator run {}",
                    super::token::GRANTS
                ))
            }
            Some(code) if *code == SqlState::INVALID_CATALOG_NAME => Error::invalid(format!(
                "PostgreSQL at {address} rejects the database ({text}): use an existing one in postgres://host:port/database"
            )),
            Some(code) if *code == SqlState::TOO_MANY_CONNECTIONS => Error::unavailable(format!(
                "PostgreSQL at {address} has no free connection ({text}): increase max_connections, or hold fewer locks"
            )),
            Some(_) => Error::unavailable(format!("PostgreSQL at {address} returned an error: {text}")),
            None if text.contains("password missing") || text.contains("missing password") => {
                Error::Unauthenticated(smol_str::format_smolstr!(
                    "PostgreSQL at {address} requires a password: write postgres://user:password@host:port/database"
                ))
            }
            None if text.contains("unexpected message") || text.contains("invalid message") => {
                Error::invalid(format!(
                    "the server at {address} does not speak the PostgreSQL protocol ({text}): check the address and the port"
                ))
            }
            None => Error::unavailable(format!(
                "failed to reach PostgreSQL at {address} ({text}): check that it is running, and that the address is PostgreSQL"
            )),
        }
    }
}

impl Session {
    /// Sets the deadline that is marked as lost when the connection is lost.
    pub(super) fn set_deadline(&self, deadline: Option<Arc<Deadline>>) {
        let is_lost = deadline.is_some() && self.client.is_closed();
        let mut current = self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        if let (true, Some(deadline)) = (is_lost, &deadline) {
            deadline.lose(Loss::SessionExpired);
        }
        *current = deadline;
    }

    /// Runs a query whose parameters are all text. At session level, the statement is prepared once. At transaction level it is
    /// not, because behind a pooler each transaction may run in another backend process.
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
        let prepared =
            self.prepared().iter().find(|(text, _)| text == sql).map(|(_, statement)| statement.clone());
        let statement = match prepared {
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

    /// Closes the connection: the server releases the locks that it held.
    pub(super) fn disconnect(&self) {
        self.task.abort();
    }

    pub(super) fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, std::sync::atomic::Ordering::Release);
    }
}

impl Drop for Session {
    /// Removes a dropped wait from the server's queue.
    fn drop(&mut self) {
        if self.waiting.load(std::sync::atomic::Ordering::Acquire) {
            let cancel = self.client.cancel_token();
            let task = self.task.clone();
            self.runtime.spawn(async move {
                let cancelled = cancel.cancel_query(NoTls);
                let _ = tokio::time::timeout(CANCEL_TIMEOUT, cancelled).await;
                task.abort();
            });
            return;
        }
        self.task.abort();
    }
}

/// The text of an error with those of its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Runs a query and returns the first value of the first row.
pub(super) async fn first_value(client: &Client, query: &str) -> Result<Option<String>, Error> {
    let answer = client.simple_query(query).await.map_err(|error| {
        Error::unavailable(format!(
            "PostgreSQL failed to run \"{query}\" ({}): try again",
            with_causes(&error)
        ))
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
                "sslmode={other} (TLS) is not supported: use a TLS tunnel, and leave out sslmode"
            )));
        }
    };
    for host in &url.hosts {
        let (name, port) = host.rsplit_once(':').unwrap_or((host, "5432"));
        config.host(name.trim_start_matches('[').trim_end_matches(']'));
        config.port(port.parse().map_err(|_| {
            Error::invalid(format!("\"{port}\" is not a port: write postgres://host:5432/database"))
        })?);
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
    // Detects a server that is gone without closing the connection, even if nothing is sent.
    config.keepalives_idle(Duration::from_secs(10));
    config.tcp_user_timeout(Duration::from_secs(30));
    Ok(config)
}
