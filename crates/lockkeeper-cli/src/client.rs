//! Options that all client verbs share: engine and output.

use std::future::Future;
use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, ValueEnum};
use lockkeeper::{Admin, EngineInfo, Keeper, KeeperBuilder, Unfenced};
use serde::Serialize;

use crate::duration;
use crate::escape;
use crate::failure::Failure;

/// The engine if none is named: a node on this machine.
pub(crate) const DEFAULT_ENGINE: &str = "lockkeeper://127.0.0.1:7420";

/// The variable for `--engine`. Unlike the flag, other users cannot see it.
const ENGINE: &str = "LOCKKEEPER_ENGINE";

/// The engine and the output format.
#[derive(Debug, Clone, Args)]
pub(crate) struct Client {
    #[arg(
        long,
        help = engine_help(),
        value_name = "URL",
        default_value = DEFAULT_ENGINE,
        env = ENGINE,
        hide_env_values = true
    )]
    pub(crate) engine: String,
    /// Tables for people, or JSON with the field names of the HTTP API. With json, an error is one line of JSON on
    /// stderr: {"error": {"code", "message"}}
    #[arg(short, long, value_enum, default_value = "table", value_name = "FORMAT")]
    pub(crate) output: Output,
    /// How long to wait for an engine to answer
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration::parse)]
    pub(crate) connect_timeout: Duration,
    /// Accept tokens that do not survive the loss of the server (Redis) as fencing tokens
    #[arg(long)]
    pub(crate) accept_volatile_tokens: bool,
}

/// Tables for people, JSON for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
}

/// The help of `--engine`, with the engines of the library.
fn engine_help() -> String {
    let others = EngineInfo::all().iter().skip(1).map(|engine| engine.prefixes[0]);
    format!(
        "The engine: {} (several hosts with commas), or {}. Pass a URL with a password in LOCKKEEPER_ENGINE",
        EngineInfo::all()[0].example.trim_end_matches(",..."),
        others.collect::<Vec<_>>().join(", ")
    )
}

impl Client {
    pub(crate) fn builder(&self) -> KeeperBuilder {
        if has_password(&self.engine) && std::env::var(ENGINE).ok().as_deref() != Some(&*self.engine) {
            // A closed stderr cannot be reported.
            let _ = writeln!(
                io::stderr(),
                "warning: every user of this machine can read the password in --engine (ps shows it): \
                 put the URL into the variable {ENGINE} instead"
            );
        }
        let builder = Keeper::builder().connect_timeout(self.connect_timeout);
        if self.accept_volatile_tokens { builder.accept_volatile_tokens() } else { builder }
    }

    /// Connects to any engine: reading needs no token.
    pub(crate) async fn connect(&self) -> Result<Keeper<Unfenced>, Failure> {
        Ok(self.builder().connect_unfenced(&self.engine).await?)
    }

    /// The administrator's client of a cell.
    pub(crate) fn admin(&self) -> Result<Admin, Failure> {
        Ok(self.builder().admin(&self.engine)?)
    }
}

/// Whether a URL contains a password: `scheme://user:password@host`.
fn has_password(url: &str) -> bool {
    let login = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    login.is_some_and(|(login, _)| login.split_once(':').is_some_and(|(_, password)| !password.is_empty()))
}

/// Limit on blocking threads (disk, name lookups). Each reserves memory for its stack, so the limit bounds memory too.
const BLOCKING_THREADS_MAX: usize = 16;

/// Runs a verb on a single-threaded runtime.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
        .map_err(|error| Failure::other(format!("failed to start the runtime: {error}")))?;
    let result = runtime.block_on(work);
    // Pending name lookups must not delay the exit.
    runtime.shutdown_background();
    result
}

/// Prints an answer, escaped, because it may contain text of other clients.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_raw(&escape::lines(text))
}

/// Prints trusted text unescaped. A closed stdout, such as with `head`, is not an error.
pub(crate) fn print_raw(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::other(format!("failed to write the answer: {error}")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn print_json(answer: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(answer)
        .map_err(|error| Failure::other(format!("failed to encode the answer as JSON: {error}")))?;
    print_raw(&escape::json(&format!("{text}\n")))
}

#[cfg(test)]
mod tests {
    use super::has_password;

    #[test]
    fn password_in_a_url_is_detected() {
        for url in ["redis://:secret@h:1", "postgres://app:secret@db/app", "redlock://u:p@h1:1,h2:1,h3:1"] {
            assert!(has_password(url), "{url}");
        }
        for url in ["redis://h:1", "postgres://app@db:5432/app", "embedded:/a@b", "consul://:@h:1"] {
            assert!(!has_password(url), "{url}");
        }
    }
}
