//! One connection to one Redis. It comes back by itself when it was lost; there is no session on the server, so a lease
//! outlives it.

use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisError, ServerErrorKind,
};

use crate::backoff;
use crate::clock::Moment;
use crate::error::Error;
use crate::url::ServerUrl;

/// A Redis, and where it is.
#[derive(Clone)]
pub(crate) struct Instance {
    pub(crate) address: String,
    manager: ConnectionManager,
}

impl Instance {
    /// Where it is and how to log in; nothing is sent yet.
    pub(crate) fn client(url: &ServerUrl, host: &str) -> Result<Client, Error> {
        if url.scheme == "rediss" {
            return Err(Error::unsupported(
                "rediss:// (TLS) is not built into this version: put a TLS tunnel in front, and use redis://",
            ));
        }
        url.allow_options(&["timeout_ms"])?;
        let database = match url.path.as_str() {
            "" => 0,
            number => number.parse().map_err(|_| {
                Error::invalid(format!("\"{number}\" is no database of Redis: write redis://host:port/0"))
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
        let port = port.parse().map_err(|_| Error::invalid(format!("\"{port}\" is no port")))?;
        let info =
            ConnectionAddr::Tcp(name, port).into_connection_info().map_err(|error| told(host, error))?;
        Client::open(info.set_redis_settings(login)).map_err(|error| told(host, error))
    }

    /// Tries until the Redis answers or the time is over.
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
                    let _: String = instance.ask(&redis::cmd("PING")).await?;
                    return Ok(instance);
                }
                Ok(Err(error)) => told(address, error),
                Err(_) => silent(address),
            };
            attempt += 1;
            let pause = backoff::pause(attempt);
            if !matches!(error, Error::Unavailable(_)) || Moment::now().plus(pause) >= until {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// The same without waiting for an answer: it connects when it is first needed.
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
            .map_err(|error| told(address, error))?;
        Ok(Instance { address: address.to_owned(), manager })
    }

    pub(crate) async fn ask<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, Error> {
        let mut manager = self.manager.clone();
        // The manager has time-outs of its own, for the connection and for the answer.
        command.query_async(&mut manager).await.map_err(|error| told(&self.address, error))
    }

    pub(crate) async fn run<T: redis::FromRedisValue>(
        &self,
        script: &redis::ScriptInvocation<'_>,
    ) -> Result<T, Error> {
        let mut manager = self.manager.clone();
        // EVALSHA, and the whole script only if the server does not know it.
        script.invoke_async(&mut manager).await.map_err(|error| told(&self.address, error))
    }
}

fn silent(address: &str) -> Error {
    Error::unavailable(format!(
        "Redis at {address} does not answer in time: look whether it runs and can be reached"
    ))
}

/// The error in plain words, with the next step.
pub(crate) fn told(address: &str, error: RedisError) -> Error {
    let code = error.code().unwrap_or_default().to_owned();
    match (error.kind(), code.as_str()) {
        (_, "NOAUTH" | "WRONGPASS") | (ErrorKind::AuthenticationFailed, _) => {
            Error::Unauthenticated(smol_str::format_smolstr!(
                "Redis at {address} wants to know who asks ({error}): write redis://user:password@{address}, or \
                 redis://:password@{address} without a user"
            ))
        }
        (_, "NOPERM") => Error::Forbidden(smol_str::format_smolstr!(
            "Redis at {address} does not allow it ({error}): the user needs the keys and channels lockkeeper:*, and the \
             commands eval, evalsha, get, set, del, hash commands, pexpire, pttl, publish, subscribe"
        )),
        (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, _) => Error::Invalid(smol_str::format_smolstr!(
            "what answers at {address} does not speak as Redis does ({error}): look at the address and the port"
        )),
        (ErrorKind::Server(ServerErrorKind::ReadOnly), _) | (_, "READONLY") => Error::unavailable(format!(
            "Redis at {address} is a replica and takes no locks: name its primary"
        )),
        (ErrorKind::Io, _) if error.is_connection_refusal() => Error::unavailable(format!(
            "no Redis answers at {address} (connection refused): start it, or name another with --engine"
        )),
        (ErrorKind::Io, _) => Error::unavailable(format!(
            "Redis at {address} cannot be reached ({error}): look whether it runs, and whether it is a Redis"
        )),
        (ErrorKind::Server(_) | ErrorKind::Extension, _) => {
            Error::unavailable(format!("Redis at {address} refuses: {error}"))
        }
        _ => Error::unavailable(format!("Redis at {address}: {error}")),
    }
}
