//! The connection to the resource, which is never cut.

use std::collections::BTreeSet;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::lab::resource::{Answer, Request};

/// A connection to the resource.
pub(super) struct ResourceLink {
    stream: BufReader<TcpStream>,
}

impl ResourceLink {
    pub(super) async fn open(address: &str) -> Result<ResourceLink, String> {
        let stream = TcpStream::connect(address).await;
        let stream =
            stream.map_err(|error| format!("failed to connect to the resource at {address}: {error}"))?;
        let _ = stream.set_nodelay(true);
        Ok(ResourceLink { stream: BufReader::new(stream) })
    }

    /// Reads the set. The inner error is the refusal of the gate.
    pub(super) async fn read(
        &mut self,
        key: &str,
        token: Option<u64>,
    ) -> Result<Result<BTreeSet<String>, String>, String> {
        match self.request(&Request::Read { key: key.to_owned(), token }).await? {
            Answer::Value { updates } => Ok(Ok(updates)),
            Answer::Refused { why } => Ok(Err(why)),
            Answer::Written { .. } => Err("the resource sent an answer of another kind".to_owned()),
        }
    }

    pub(super) async fn write(
        &mut self,
        key: &str,
        token: Option<u64>,
        updates: BTreeSet<String>,
        added: String,
    ) -> Result<Result<u64, String>, String> {
        match self.request(&Request::Write { key: key.to_owned(), token, updates, added }).await? {
            Answer::Written { wiped } => Ok(Ok(wiped)),
            Answer::Refused { why } => Ok(Err(why)),
            Answer::Value { .. } => Err("the resource sent an answer of another kind".to_owned()),
        }
    }

    async fn request(&mut self, request: &Request) -> Result<Answer, String> {
        let failed = |error: std::io::Error| format!("the resource does not answer: {error}");
        let mut line = serde_json::to_string(request).map_err(|error| error.to_string())?;
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes()).await.map_err(failed)?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).await.map_err(failed)?;
        serde_json::from_str(&answer).map_err(|error| format!("the resource sent an invalid answer: {error}"))
    }
}
