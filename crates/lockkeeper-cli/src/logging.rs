//! Logs on stderr, as text or as JSON.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// What is logged if nobody says anything else.
pub(crate) const FILTER: &str = "info,openraft=error";

/// Logs as text or as JSON.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Reads a filter only to see whether it is one.
pub(crate) fn filter(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}: write a level such as info, or levels of parts such as {FILTER}")),
    }
}

/// Logs from now on. `filter` was read by [`filter`] before.
pub(crate) fn start(filter: &str, format: LogFormat) {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new(FILTER)))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => builder.with_target(false).init(),
        LogFormat::Json => builder.json().init(),
    }
}
