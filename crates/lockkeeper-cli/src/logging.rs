//! Logs on stderr, as text or as JSON; and spans to a collector, where the environment asks for them.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::escape::LogWriter;

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
pub(crate) fn start(filter: &str, format: LogFormat) -> Logging {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new(FILTER));
    let has_colours = std::io::stderr().is_terminal();
    let is_json = matches!(format, LogFormat::Json);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(move || LogWriter { is_json, has_colours })
        .with_ansi(has_colours);
    let lines = match format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let (logging, trouble) = begin(Some(lines.with_filter(filter).boxed()));
    if let Some(why) = trouble {
        tracing::warn!("there are no traces: {why}");
    }
    logging
}

/// Spans alone: for verbs that speak to people and have no log.
pub(crate) fn start_silent() -> Logging {
    let (logging, trouble) = begin(None);
    if let Some(why) = trouble {
        eprintln!("lockkeeper: there are no traces: {why}");
    }
    logging
}

type Lines = Option<Box<dyn Layer<Registry> + Send + Sync>>;

/// Begins, with traces if they are asked for and can be sent. If not, says why: no lock is worth less for that.
#[cfg(feature = "otel")]
fn begin(lines: Lines) -> (Logging, Option<String>) {
    let mut trouble = None;
    if crate::otel::is_asked_for() {
        match crate::otel::layer() {
            Ok((spans, traces)) => {
                tracing_subscriber::registry().with(lines).with(spans).init();
                return (Logging { _traces: Some(traces) }, None);
            }
            Err(why) => trouble = Some(why),
        }
    }
    if let Some(lines) = lines {
        tracing_subscriber::registry().with(lines).init();
    }
    (Logging::default(), trouble)
}

#[cfg(not(feature = "otel"))]
fn begin(lines: Lines) -> (Logging, Option<String>) {
    if let Some(lines) = lines {
        tracing_subscriber::registry().with(lines).init();
    }
    (Logging::default(), None)
}
