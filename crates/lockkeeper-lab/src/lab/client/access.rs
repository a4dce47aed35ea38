//! Access to the lock, through the library or by a naive recipe.

use std::time::Duration;

use lockkeeper::protocols::resp;
use lockkeeper::{Error, Fenced, Guard, Keeper, TokenKind, Unfenced};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::NoTls;

/// Polling interval of a naive client.
const POLL: Duration = Duration::from_millis(50);

/// Access to the locks.
pub(super) enum Access {
    /// The library, on an engine with tokens.
    Fenced(Keeper<Fenced>),
    /// The library, on an engine without.
    Unfenced(Keeper<Unfenced>),
    /// `SET NX PX`, and `DEL`.
    Naive(NaiveRedis),
    /// `pg_advisory_lock`, and `pg_advisory_unlock`.
    Advisory(tokio_postgres::Client),
}

/// A lock that is or was held.
pub(super) enum Held {
    Fenced(Guard<Fenced>),
    Unfenced(Guard<Unfenced>),
    Plain,
}

impl Access {
    pub(super) async fn open(url: &str, name: &str, ttl: Duration) -> Result<Access, String> {
        if let Some(address) = url.strip_prefix("naive://") {
            return Ok(Access::Naive(NaiveRedis::open(address, name, ttl).await?));
        }
        if let Some(address) = url.strip_prefix("advisory://") {
            let failed = |error| format!("PostgreSQL does not answer: {}", postgres_message(&error));
            let settings = format!("postgres://postgres@{address}/postgres");
            let (client, connection) = tokio_postgres::connect(&settings, NoTls).await.map_err(failed)?;
            tokio::spawn(connection);
            return Ok(Access::Advisory(client));
        }
        let words = |error: Error| error.to_string();
        let keeper = Keeper::builder()
            .owner(name)
            .ttl(ttl)
            .accept_volatile_tokens()
            .connect_timeout(Duration::from_secs(20))
            .request_timeout(Duration::from_secs(3))
            .connect_unfenced(url)
            .await
            .map_err(words)?;
        if keeper.capabilities().token == TokenKind::None {
            return Ok(Access::Unfenced(keeper));
        }
        Ok(Access::Fenced(keeper.fenced().map_err(words)?))
    }

    /// Another access on the same connection, where the engine supports that.
    pub(super) fn share(&self) -> Option<Access> {
        match self {
            Access::Fenced(keeper) => Some(Access::Fenced(keeper.clone())),
            Access::Unfenced(keeper) => Some(Access::Unfenced(keeper.clone())),
            Access::Naive(_) | Access::Advisory(_) => None,
        }
    }

    pub(super) async fn acquire(&mut self, lock: &str, wait: Duration) -> Result<Held, String> {
        let words = |error: Error| error.to_string();
        match self {
            Access::Fenced(keeper) => {
                keeper.lock(lock).wait(wait).acquire().await.map(Held::Fenced).map_err(words)
            }
            Access::Unfenced(keeper) => {
                keeper.lock(lock).wait(wait).acquire().await.map(Held::Unfenced).map_err(words)
            }
            Access::Naive(redis) => redis.acquire(lock, wait).await,
            Access::Advisory(client) => {
                let sql = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
                let until = tokio::time::Instant::now() + wait;
                loop {
                    // Through a pooler in transaction mode there are no prepared statements to rely on.
                    let typed = [(
                        &lock as &(dyn tokio_postgres::types::ToSql + Sync),
                        tokio_postgres::types::Type::TEXT,
                    )];
                    let row = client.query_typed(sql, &typed).await;
                    let row = row.map_err(|error| postgres_message(&error))?;
                    if row.first().is_some_and(|row| row.get::<_, bool>(0)) {
                        return Ok(Held::Plain);
                    }
                    if tokio::time::Instant::now() >= until {
                        return Err("the lock is busy".to_owned());
                    }
                    tokio::time::sleep(POLL).await;
                }
            }
        }
    }

    pub(super) async fn release(&mut self, lock: &str, held: Held) -> Result<(), String> {
        let words = |error: Error| error.to_string();
        match (self, held) {
            (_, Held::Fenced(guard)) => guard.release().await.map_err(words),
            (_, Held::Unfenced(guard)) => guard.release().await.map_err(words),
            (Access::Naive(redis), Held::Plain) => redis.delete(lock).await,
            (Access::Advisory(client), Held::Plain) => {
                let sql = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
                let typed = [(
                    &lock as &(dyn tokio_postgres::types::ToSql + Sync),
                    tokio_postgres::types::Type::TEXT,
                )];
                let rows = client.query_typed(sql, &typed).await.map_err(|error| postgres_message(&error))?;
                match rows.first().map(|row| row.get::<_, bool>(0)) {
                    Some(true) => Ok(()),
                    _ => Err("PostgreSQL: you do not own this lock".to_owned()),
                }
            }
            (_, Held::Plain) => Ok(()),
        }
    }
}

/// The message of PostgreSQL, which is the source of the error.
fn postgres_message(error: &tokio_postgres::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

impl Held {
    pub(super) fn token(&self) -> Option<u64> {
        match self {
            Held::Fenced(guard) => Some(guard.token().0),
            Held::Unfenced(_) | Held::Plain => None,
        }
    }

    /// How long it is certainly held from now; `None` if the recipe does not know.
    pub(super) fn remaining(&self) -> Option<Duration> {
        match self {
            Held::Fenced(guard) => Some(guard.remaining()),
            Held::Unfenced(guard) => Some(guard.remaining()),
            Held::Plain => None,
        }
    }

    pub(super) fn why_lost(&self) -> String {
        let state = match self {
            Held::Fenced(guard) => guard.check(),
            Held::Unfenced(guard) => guard.check(),
            Held::Plain => Ok(()),
        };
        state.err().map(|error| error.to_string()).unwrap_or_default()
    }
}

/// The naive recipe of many blog posts: `SET key value NX PX ttl` to acquire, `DEL key` to release. It does not renew, and
/// does not check whose lock it deletes.
pub(super) struct NaiveRedis {
    address: String,
    /// `None` after it broke.
    stream: Option<TcpStream>,
    name: String,
    ttl: Duration,
}

impl NaiveRedis {
    pub(super) async fn open(address: &str, name: &str, ttl: Duration) -> Result<NaiveRedis, String> {
        let mut redis = NaiveRedis { address: address.to_owned(), stream: None, name: name.to_owned(), ttl };
        redis.command(&["PING"]).await?;
        Ok(redis)
    }

    pub(super) async fn acquire(&mut self, lock: &str, wait: Duration) -> Result<Held, String> {
        let until = tokio::time::Instant::now() + wait;
        let (name, ttl) = (self.name.clone(), self.ttl.as_millis().to_string());
        loop {
            let answer = self.command(&["SET", &format!("naive:{lock}"), &name, "NX", "PX", &ttl]).await?;
            if answer == "+OK" {
                return Ok(Held::Plain);
            }
            if tokio::time::Instant::now() >= until {
                return Err("the lock is busy".to_owned());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    pub(super) async fn delete(&mut self, lock: &str) -> Result<(), String> {
        self.command(&["DEL", &format!("naive:{lock}")]).await.map(drop)
    }

    /// Sends a command whose answer is one line. Reconnects once if the connection is broken.
    async fn command(&mut self, words: &[&str]) -> Result<String, String> {
        if self.stream.is_some()
            && let Ok(answer) = self.send(words).await
        {
            return Ok(answer);
        }
        let failed = |error: std::io::Error| format!("Redis does not answer: {error}");
        let stream = TcpStream::connect(&self.address).await.map_err(failed)?;
        let _ = stream.set_nodelay(true);
        self.stream = Some(stream);
        self.send(words).await.map_err(failed)
    }

    async fn send(&mut self, words: &[&str]) -> std::io::Result<String> {
        let Some(stream) = &mut self.stream else { return Err(std::io::ErrorKind::NotConnected.into()) };
        stream.write_all(resp::encode(words).as_bytes()).await?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.push(stream.read_u8().await?);
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }
}
