//! Logs on stderr, as text or as JSON; and spans to a collector, where the environment asks for them.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::failure::Failure;

/// What is logged if nobody says anything else.
pub(crate) const FILTER: &str = "info,openraft=error";

/// Logs as text or as JSON.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// To be kept as long as the process works: what it still has to send is sent when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Logging {
    #[cfg(feature = "otel")]
    _traces: Option<crate::otel::Traces>,
}

/// Reads a filter only to see whether it is one.
pub(crate) fn filter(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => {
            Err(format!("{error}: write a level such as info, or levels of parts such as {FILTER}"))
        }
    }
}

/// Logs from now on. `filter` was read by [`filter`] before.
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<Logging, Failure> {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new(FILTER));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let lines = match format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    begin(Some(lines.with_filter(filter).boxed()))
}

/// Spans alone: for verbs that speak to people and have no log.
pub(crate) fn start_silent() -> Result<Logging, Failure> {
    begin(None)
}

#[cfg(feature = "otel")]
fn begin(lines: Option<Box<dyn Layer<Registry> + Send + Sync>>) -> Result<Logging, Failure> {
    if !crate::otel::is_asked_for() {
        if let Some(lines) = lines {
            tracing_subscriber::registry().with(lines).init();
        }
        return Ok(Logging::default());
    }
    let (spans, traces) = crate::otel::layer()?;
    tracing_subscriber::registry().with(lines).with(spans).init();
    Ok(Logging { _traces: Some(traces) })
}

#[cfg(not(feature = "otel"))]
fn begin(lines: Option<Box<dyn Layer<Registry> + Send + Sync>>) -> Result<Logging, Failure> {
    if let Some(lines) = lines {
        tracing_subscriber::registry().with(lines).init();
    }
    Ok(Logging::default())
}
