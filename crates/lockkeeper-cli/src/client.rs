//! What all client verbs have in common: which engine, which output.

use std::future::Future;
use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, ValueEnum};
use lockkeeper::{Keeper, KeeperBuilder, Unfenced};
use serde::Serialize;

use crate::duration;
use crate::escape;
use crate::failure::Failure;

/// The variable that says the same as `--engine`, and that others do not see.
const ENGINE: &str = "LOCKKEEPER_ENGINE";

/// Which engine, and how to answer.
#[derive(Debug, Clone, Args)]
pub(crate) struct Client {
    /// Where the locks are kept: lockkeeper://host:port, several hosts with commas; or redis://, redlock://, etcd://,
    /// zookeeper://, consul://, postgres://, embedded:. A URL with a password belongs into the variable
    #[arg(
        long,
        value_name = "URL",
        default_value = "lockkeeper://127.0.0.1:7420",
        env = ENGINE
    )]
    pub(crate) engine: String,
    /// Tables for people or JSON for programs, with the names of the HTTP API. With json, an error is one line of
    /// JSON on stderr as well: {"error": {"code", "message"}}
    #[arg(long, value_enum, default_value = "table", value_name = "FORMAT")]
    pub(crate) output: Output,
    /// How long to look for an engine that answers
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration::parse)]
    pub(crate) connect_timeout: Duration,
    /// Take tokens that do not survive the loss of the server (Redis) for a fence all the same
    #[arg(long)]
    pub(crate) accept_volatile_tokens: bool,
}

/// Tables for people, JSON for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
}

impl Client {
    pub(crate) fn builder(&self) -> KeeperBuilder {
        if has_password(&self.engine) && std::env::var(ENGINE).ok().as_deref() != Some(&*self.engine) {
            // Nothing can be done about a stderr that is closed.
            let _ = writeln!(
                io::stderr(),
                "warning: everybody on this machine can read the password in --engine (ps shows it): \
                 put the URL into the variable {ENGINE} instead"
            );
        }
        let builder = Keeper::builder().connect_timeout(self.connect_timeout);
        if self.accept_volatile_tokens { builder.accept_volatile_tokens() } else { builder }
    }

    /// To any engine: whoever only looks needs no token.
    pub(crate) async fn connect(&self) -> Result<Keeper<Unfenced>, Failure> {
        Ok(self.builder().connect_unfenced(&self.engine).await?)
    }
}

/// Whether a URL has a secret in it: `scheme://user:password@host`.
fn has_password(url: &str) -> bool {
    let login = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    login.is_some_and(|(login, _)| login.split_once(':').is_some_and(|(_, password)| !password.is_empty()))
}

/// Does the work of a verb on a runtime of its own. One thread: there is one connection and one thing to do.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::other(format!("the runtime cannot be started: {error}")))?;
    let result = runtime.block_on(work);
    // Look-ups of names that nobody waits for any more must not keep us.
    runtime.shutdown_background();
    result
}

/// Prints an answer, escaped: it may hold other people's text.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_raw(&escape::lines(text))
}

/// Prints text of our own as it is. A reader that has gone away, such as `head`, is no error.
pub(crate) fn print_raw(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::other(format!("the answer cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn print_json(answer: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(answer)
        .map_err(|error| Failure::other(format!("the answer cannot be written as JSON: {error}")))?;
    print_raw(&escape::json(&format!("{text}\n")))
}

#[cfg(test)]
mod tests {
    use super::has_password;

    #[test]
    fn a_secret_in_a_url_is_seen() {
        for url in ["redis://:secret@h:1", "postgres://app:secret@db/app", "redlock://u:p@h1:1,h2:1,h3:1"] {
            assert!(has_password(url), "{url}");
        }
        for url in ["redis://h:1", "postgres://app@db:5432/app", "embedded:/a@b", "consul://:@h:1"] {
            assert!(!has_password(url), "{url}");
        }
    }
}
