//! Logs to stderr, as text or JSON, and sends spans to a collector if the environment configures one.

use std::io::IsTerminal;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::escape::LogWriter;

/// The default log filter.
pub(crate) const FILTER: &str = "info,openraft=error";

/// The format of log lines.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Exports the remaining spans when dropped: keep it for the life of the process.
#[derive(Debug, Default)]
pub(crate) struct Logging {
    #[cfg(feature = "otel")]
    _traces: Option<crate::otel::Traces>,
}

/// Checks a filter.
pub(crate) fn filter(text: &str) -> Result<String, String> {
    match text.parse::<Targets>() {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => {
            Err(format!("{error}: use a level such as info, or levels per target such as {FILTER}"))
        }
    }
}

/// Starts logging with a filter that [`filter`] has checked.
pub(crate) fn start(filter: &str, format: LogFormat) -> Logging {
    let filter: Targets = filter.parse().unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO));
    let has_colours = std::io::stderr().is_terminal();
    let is_json = matches!(format, LogFormat::Json);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(move || LogWriter { is_json, has_colours })
        .with_ansi(has_colours);
    let lines = match format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let (logging, problem) = install(Some(lines.with_filter(filter).boxed()));
    if let Some(why) = problem {
        tracing::warn!("traces are off: {why}");
    }
    logging
}

/// Starts spans without logs, for interactive verbs.
pub(crate) fn start_silent() -> Logging {
    let (logging, problem) = install(None);
    if let Some(why) = problem {
        eprintln!("lockkeeper: traces are off: {why}");
    }
    logging
}

type Lines = Option<Box<dyn Layer<Registry> + Send + Sync>>;

/// Installs logs and, if configured, traces. A failure of traces is returned and does not stop the verb.
#[cfg(feature = "otel")]
fn install(lines: Lines) -> (Logging, Option<String>) {
    let mut problem = None;
    if crate::otel::is_configured() {
        match crate::otel::layer() {
            Ok((spans, traces)) => {
                tracing_subscriber::registry().with(lines).with(spans).init();
                return (Logging { _traces: Some(traces) }, None);
            }
            Err(why) => problem = Some(why),
        }
    }
    if let Some(lines) = lines {
        tracing_subscriber::registry().with(lines).init();
    }
    (Logging::default(), problem)
}

#[cfg(not(feature = "otel"))]
fn install(lines: Lines) -> (Logging, Option<String>) {
    if let Some(lines) = lines {
        tracing_subscriber::registry().with(lines).init();
    }
    (Logging::default(), None)
}
