//! Sends spans to an OpenTelemetry collector if the usual variables are set:
//!
//! | variable | effect |
//! |---|---|
//! | `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` | address of the collector; either turns traces on |
//! | `OTEL_TRACES_EXPORTER` | `otlp` turns traces on with http://localhost:4318, `none` off |
//! | `OTEL_SDK_DISABLED` | `true` turns traces off |
//! | `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_BSP_*` | as specified by OpenTelemetry |
//!
//! OTLP over HTTP with protobuf. A separate thread sends spans every few seconds; if the collector does not keep up, spans
//! are dropped and the node continues.

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Level, Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// Exports the remaining spans when dropped.
#[derive(Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "failed to send the last spans");
        }
    }
}

/// Whether the environment turns traces on.
pub(crate) fn is_configured() -> bool {
    let value = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let is = |name: &str, word: &str| value(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
    if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
        return false;
    }
    is("OTEL_TRACES_EXPORTER", "otlp")
        || value("OTEL_EXPORTER_OTLP_ENDPOINT").is_some()
        || value("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").is_some()
}

/// The layer for our spans, and their exporter; or the reason why traces are off, with the next step.
pub(crate) fn layer<S>() -> Result<(impl Layer<S> + Send + Sync, Traces), String>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let first = |names: [&str; 2]| {
        names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    };
    let endpoint = first(["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]);
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("https:")) {
        return Err("https is not supported: name a collector on this machine, such as \
                    OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318"
            .to_owned());
    }
    let protocol = first(["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]);
    if let Some(other) = protocol.filter(|protocol| protocol != "http/protobuf") {
        return Err(format!(
            "the protocol {other} is not supported: set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf and the \
             collector's endpoint for it, usually on port 4318"
        ));
    }
    let exporter = SpanExporter::builder()
        .with_http()
        .build()
        .map_err(|error| format!("{error}. Correct OTEL_EXPORTER_OTLP_ENDPOINT: http://host:4318"))?;
    let resource = Resource::builder();
    let resource = match std::env::var_os("OTEL_SERVICE_NAME") {
        Some(_) => resource,
        None => resource.with_service_name("lockkeeper"),
    };
    let provider =
        SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build();
    lockkeeper_server::trace::set_parent_adopter(join_trace);
    let tracer = provider.tracer("lockkeeper");
    let own = Targets::new().with_target(lockkeeper_server::trace::TARGET, Level::DEBUG);
    let layer = tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(own);
    Ok((layer, Traces { provider }))
}

/// Adds a span to the trace of a `traceparent`; an invalid one is ignored.
fn join_trace(span: &Span, traceparent: &str) {
    let carrier = std::collections::HashMap::from([("traceparent".to_owned(), traceparent.to_owned())]);
    let context = TraceContextPropagator::new().extract(&carrier);
    // Fails only if no layer records this span.
    let _ = span.set_parent(context);
}
