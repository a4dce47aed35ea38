//! The connection to a Redis. It reconnects by itself. Redis has no sessions, so a lease survives the loss of its
//! connection.

use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisError, ServerErrorKind,
};

use crate::backoff;
use crate::clock::Moment;
use crate::error::Error;
use crate::url::ServerUrl;

/// The connection to a Redis.
#[derive(Clone)]
pub(crate) struct Instance {
    pub(crate) address: String,
    manager: ConnectionManager,
}

impl Instance {
    /// A client with the address and the login of the URL; connects later.
    pub(crate) fn client(url: &ServerUrl, host: &str) -> Result<Client, Error> {
        if url.scheme == "rediss" {
            return Err(Error::unsupported(
                "rediss:// (TLS) is not supported: use a TLS tunnel, and redis:// to connect to it",
            ));
        }
        url.allow_options(&["timeout_ms"])?;
        let database = match url.path.as_str() {
            "" => 0,
            number => number.parse().map_err(|_| {
                Error::invalid(format!("\"{number}\" is not a database number: write redis://host:port/0"))
            })?,
        };
        let mut login = RedisConnectionInfo::default().set_db(database);
        if let Some(user) = &url.user {
            login = login.set_username(user);
        }
        if let Some(password) = &url.password {
            login = login.set_password(password);
        }
        let (name, port) = host.rsplit_once(':').unwrap_or((host, "6379"));
        let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = port
            .parse()
            .map_err(|_| Error::invalid(format!("\"{port}\" is not a port: write redis://host:6379")))?;
        let info = ConnectionAddr::Tcp(name, port)
            .into_connection_info()
            .map_err(|error| convert_error(host, error))?;
        Client::open(info.set_redis_settings(login)).map_err(|error| convert_error(host, error))
    }

    /// Connects, with retries until Redis answers or the timeout has passed.
    pub(crate) async fn connect(
        client: Client,
        address: &str,
        connect_timeout: Duration,
        response_timeout: Duration,
    ) -> Result<Instance, Error> {
        let until = Moment::now().plus(connect_timeout);
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(0)
            .set_connection_timeout(Some(response_timeout))
            .set_response_timeout(Some(response_timeout));
        let mut attempt = 0;
        loop {
            let left = until.since(Moment::now());
            let opening = ConnectionManager::new_with_config(client.clone(), config.clone());
            let error = match tokio::time::timeout(left, opening).await {
                Ok(Ok(manager)) => {
                    let instance = Instance { address: address.to_owned(), manager };
                    let _: String = instance.query(&redis::cmd("PING")).await?;
                    return Ok(instance);
                }
                Ok(Err(error)) => convert_error(address, error),
                Err(_) => no_answer(address),
            };
            attempt += 1;
            let pause = backoff::pause(attempt);
            if !matches!(error, Error::Unavailable(_)) || Moment::now().plus(pause) >= until {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Returns at once and connects on first use.
    pub(crate) fn connect_later(
        client: Client,
        address: &str,
        response_timeout: Duration,
    ) -> Result<Instance, Error> {
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(0)
            .set_connection_timeout(Some(response_timeout))
            .set_response_timeout(Some(response_timeout));
        let manager = ConnectionManager::new_lazy_with_config(client.clone(), config)
            .map_err(|error| convert_error(address, error))?;
        Ok(Instance { address: address.to_owned(), manager })
    }

    pub(crate) async fn query<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, Error> {
        let mut manager = self.manager.clone();
        // The manager enforces timeouts for the connection and for the answer.
        command.query_async(&mut manager).await.map_err(|error| convert_error(&self.address, error))
    }

    pub(crate) async fn run_script<T: redis::FromRedisValue>(
        &self,
        script: &redis::ScriptInvocation<'_>,
    ) -> Result<T, Error> {
        let mut manager = self.manager.clone();
        // Sends EVALSHA, and loads the script if the server does not know it.
        script.invoke_async(&mut manager).await.map_err(|error| convert_error(&self.address, error))
    }
}

fn no_answer(address: &str) -> Error {
    Error::unavailable(format!(
        "Redis at {address} did not answer in time: check that it is running and reachable"
    ))
}

/// Converts an error of the client library, and adds the next step.
fn convert_error(address: &str, error: RedisError) -> Error {
    let code = error.code().unwrap_or_default().to_owned();
    match (error.kind(), code.as_str()) {
        (_, "NOAUTH" | "WRONGPASS") | (ErrorKind::AuthenticationFailed, _) => {
            Error::Unauthenticated(smol_str::format_smolstr!(
                "Redis at {address} requires authentication ({error}): write redis://user:password@{address}, or \
                 redis://:password@{address} without a user"
            ))
        }
        (_, "NOPERM") => Error::Forbidden(smol_str::format_smolstr!(
            "Redis at {address} denies permission ({error}): grant the user the keys and channels lockkeeper:*, and the \
             commands eval, evalsha, get, set, del, hash commands, pexpire, pttl, publish, subscribe"
        )),
        (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, _) => Error::Invalid(smol_str::format_smolstr!(
            "the server at {address} does not speak the Redis protocol ({error}): check the address and the port"
        )),
        (ErrorKind::Server(ServerErrorKind::ReadOnly), _) | (_, "READONLY") => Error::unavailable(format!(
            "Redis at {address} is a read-only replica and cannot grant locks: connect to its primary"
        )),
        (ErrorKind::Io, _) if error.is_connection_refusal() => Error::unavailable(format!(
            "failed to connect to Redis at {address} (connection refused): start it, or check the address"
        )),
        (ErrorKind::Io, _) => Error::unavailable(format!(
            "failed to reach Redis at {address} ({error}): check that it is running, and that the address is Redis"
        )),
        (ErrorKind::Server(_) | ErrorKind::Extension, _) => {
            Error::unavailable(format!("Redis at {address} returned an error: {error}"))
        }
        _ => Error::unavailable(format!("a request to Redis at {address} failed: {error}")),
    }
}
