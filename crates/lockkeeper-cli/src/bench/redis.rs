//! The baseline on Redis: the usual recipe, directly on the protocol. `SET NX PX` with a unique value, and a
//! compare-and-delete script. It shares no code with our engine.

use std::time::Duration;

use lockkeeper::protocols::resp::encode;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::contender::BenchError;

const RELEASE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
/// Pause between two attempts while another client holds the lock: the recipe polls.
const POLL: Duration = Duration::from_millis(1);

/// One connection to Redis.
pub(super) struct BareRedis {
    stream: BufReader<TcpStream>,
    release: String,
    number: usize,
    acquired: u64,
    /// Releases to send with the next command, and their number.
    unsent: (String, usize),
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Redis(error.to_string())
}

impl BareRedis {
    pub(super) async fn connect(address: &str, number: usize) -> Result<BareRedis, BenchError> {
        let stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let mut redis = BareRedis {
            stream: BufReader::new(stream),
            release: String::new(),
            number,
            acquired: 0,
            unsent: Default::default(),
        };
        redis.release = redis
            .command(&["SCRIPT", "LOAD", RELEASE])
            .await?
            .ok_or_else(|| BenchError::Redis("the script was not loaded".to_owned()))?;
        Ok(redis)
    }

    pub(super) async fn acquire(&mut self, lock: &str, contended: bool) -> Result<String, BenchError> {
        self.acquired += 1;
        let value = format!("{:08x}-{:012x}", self.number, self.acquired);
        loop {
            if self.command(&["SET", lock, &value, "NX", "PX", "10000"]).await?.is_some() {
                return Ok(value);
            }
            if !contended {
                return Err(BenchError::Redis(format!("{lock} is held by another client")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    pub(super) async fn release(&mut self, lock: &str, value: &str) -> Result<(), BenchError> {
        let release = self.release.clone();
        match self.command(&["EVALSHA", &release, "1", lock, value]).await?.as_deref() {
            Some("1") => Ok(()),
            other => Err(BenchError::Redis(format!("{lock} was not released: {other:?}"))),
        }
    }

    /// Sends the release in one write with the next command, without waiting for its answer.
    pub(super) fn release_with_next(&mut self, lock: &str, value: &str) {
        let request = encode(&["EVALSHA", &self.release, "1", lock, value]);
        self.unsent.0.push_str(&request);
        self.unsent.1 += 1;
    }

    /// Sends the remaining release; without it the last lock stays until it expires.
    pub(super) async fn close(&mut self) {
        let (releases, _) = std::mem::take(&mut self.unsent);
        let _ = self.stream.get_mut().write_all(releases.as_bytes()).await;
    }

    async fn command(&mut self, words: &[&str]) -> Result<Option<String>, BenchError> {
        let (mut request, releases) = std::mem::take(&mut self.unsent);
        request.push_str(&encode(words));
        self.stream.get_mut().write_all(request.as_bytes()).await.map_err(failed)?;
        for _ in 0..releases {
            match self.answer().await?.as_deref() {
                Some("1") => {}
                other => return Err(BenchError::Redis(format!("a lock was not released: {other:?}"))),
            }
        }
        self.answer().await
    }

    async fn answer(&mut self) -> Result<Option<String>, BenchError> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.map_err(failed)?;
        let (kind, rest) =
            line.trim_end().split_at_checked(1).ok_or_else(|| failed("the connection was closed"))?;
        match (kind, rest) {
            ("+" | ":", text) => Ok(Some(text.to_owned())),
            ("$", "-1") => Ok(None),
            ("$", length) => {
                let length: usize = length.parse().map_err(failed)?;
                let mut text = vec![0; length + 2];
                self.stream.read_exact(&mut text).await.map_err(failed)?;
                text.truncate(length);
                String::from_utf8(text).map(Some).map_err(failed)
            }
            (_, text) => Err(BenchError::Redis(text.to_owned())),
        }
    }
}
