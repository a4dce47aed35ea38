//! A minimal HTTP client that never follows, retries or waits by itself.

use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time limit for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// One connection.
pub struct Http {
    stream: BufReader<TcpStream>,
}

/// A response.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Answer {
    /// The code of an error, or an empty string.
    pub fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }

    /// The body of a success.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }
}

impl Http {
    pub async fn connect(address: &str) -> io::Result<Http> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Http { stream: BufReader::new(stream) })
    }

    pub async fn send_post(&mut self, path: &str, body: &Value) -> io::Result<()> {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.stream.get_mut().write_all((head + &body).as_bytes()).await
    }

    pub async fn send_get(&mut self, path: &str) -> io::Result<()> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes()).await
    }

    /// The next answer on this connection.
    pub async fn receive(&mut self) -> io::Result<Answer> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer");
        timeout(ANSWER_TIMEOUT, self.read()).await.map_err(late)?
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line).await? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "cut off")),
            _ => Ok(line),
        }
    }

    async fn read(&mut self) -> io::Result<Answer> {
        let invalid = |what: &str| io::Error::other(what.to_owned());
        let line = self.line().await?;
        let status = line.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or(invalid("no status"))?;
        let (mut length, mut is_text) = (0, false);
        loop {
            let line = self.line().await?;
            if line == "\r\n" {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => {
                    length = value.trim().parse().map_err(|_| invalid("invalid content-length"))?
                }
                // Only the metrics are not JSON.
                "content-type" => is_text = value.contains("text/"),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        let body = match is_text {
            true => Value::String(String::from_utf8_lossy(&body).into_owned()),
            false => serde_json::from_slice(&body).map_err(|_| invalid("the body is not JSON"))?,
        };
        Ok(Answer { status, body })
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> io::Result<Answer> {
        self.send_post(path, body).await?;
        self.receive().await
    }

    pub async fn get(&mut self, path: &str) -> io::Result<Answer> {
        self.send_get(path).await?;
        self.receive().await
    }
}

/// Posts on a new connection.
pub async fn post(address: &str, path: &str, body: &Value) -> io::Result<Answer> {
    Http::connect(address).await?.post(path, body).await
}

/// Gets on a new connection.
pub async fn get(address: &str, path: &str) -> io::Result<Answer> {
    Http::connect(address).await?.get(path).await
}

/// The same with a short time limit, for nodes that may be paused.
pub async fn quick_get(address: &str, path: &str) -> Option<Answer> {
    timeout(Duration::from_millis(1_000), get(address, path)).await.ok()?.ok()
}
