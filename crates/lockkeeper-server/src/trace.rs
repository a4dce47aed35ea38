//! Tracing spans: `http`, the request in it, its wait, and the log entry that carried it.
//!
//! They have level debug and a target of their own. Unless a subscriber enables that target, a span costs one atomic load
//! and no allocation. A wait names the holder of the lock at its start.

use std::sync::OnceLock;
use std::time::Instant;

use lockkeeper_core::history::ShortSession;
use lockkeeper_core::{Acquire, CellTime, Command, LockTable};
use tracing::Span;
use tracing::field::{Empty, display};

use crate::effects::callers::Caller;
use crate::failure::Outcome;

/// The target of all spans, including those of the library.
pub const TARGET: &str = "lockkeeper::trace";

/// Makes a span the child of a span in another process, identified by a `traceparent` header.
pub type AdoptParent = fn(&Span, &str);

static ADOPT_PARENT: OnceLock<AdoptParent> = OnceLock::new();

/// Sets how spans join traces of other processes. Only the first call has an effect.
pub fn set_parent_adopter(adopt: AdoptParent) {
    let _ = ADOPT_PARENT.set(adopt);
}

/// A caller with the span of its request, which ends with the answer.
#[derive(Debug)]
pub struct TracedCaller {
    pub(crate) caller: Caller,
    span: Span,
    wait: Option<(Span, Instant)>,
}

/// Adds a span to the caller, if a subscriber collects spans.
pub fn trace_request(command: &Command, caller: Caller) -> Caller {
    if matches!(caller, Caller::Nobody) {
        return caller;
    }
    let span = tracing::debug_span!(
        target: "lockkeeper::trace",
        "request",
        otel.name = command.name(),
        lock = command.lock(),
        session = command.session().map(ShortSession::from).map(display),
        token = Empty,
        outcome = Empty,
    );
    match span.is_disabled() {
        true => caller,
        false => Caller::Traced(Box::new(TracedCaller { caller, span, wait: None })),
    }
}

/// Returns the span of the log entry that carries these requests. It ends when it is dropped.
pub fn batch(callers: &[Caller]) -> Span {
    let span = tracing::debug_span!(
        target: "lockkeeper::trace", parent: None, "batch", commands = callers.len()
    );
    if !span.is_disabled() {
        for caller in callers {
            if let Caller::Traced(traced) = caller {
                traced.span.follows_from(&span);
            }
        }
    }
    span
}

/// Returns the span of an HTTP call, as part of the trace that `traceparent` names.
pub fn http(method: &str, path: &str, traceparent: Option<&str>) -> Span {
    let span = tracing::debug_span!(
        target: "lockkeeper::trace",
        parent: None,
        "http",
        otel.name = %format_args!("{method} {path}"),
        otel.kind = "server",
        http.request.method = method,
        url.path = path,
        http.response.status_code = Empty,
    );
    if !span.is_disabled()
        && let (Some(adopt), Some(traceparent)) = (ADOPT_PARENT.get(), traceparent)
    {
        adopt(&span, traceparent);
    }
    span
}

impl TracedCaller {
    /// Starts the span of a wait after the request was queued. Records the current holder.
    pub(crate) fn record_wait(&mut self, table: &LockTable, now: CellTime, request: &Acquire) {
        let Some(lock) = request.locks.as_slice().first() else { return };
        let view = table.lock_view(lock, now, 1);
        let span = tracing::debug_span!(
            target: "lockkeeper::trace",
            parent: &self.span,
            "wait",
            lock = %lock,
            session = %ShortSession::from(request.session),
            position = view.waiting,
            holder = Empty,
            waited_ms = Empty,
        );
        if let Some(holder) = view.holders.first() {
            span.record("holder", display(format_args!("{} (token {})", holder.owner, holder.token.0)));
        }
        self.wait = Some((span, Instant::now()));
    }

    /// Ends all spans and delivers the answer.
    pub(crate) fn deliver(self, outcome: Outcome) -> bool {
        if let Some((wait, began)) = self.wait {
            wait.record("waited_ms", began.elapsed().as_millis() as u64);
        }
        match &outcome {
            Ok(reply) => {
                self.span.record("outcome", "done");
                if let lockkeeper_core::Reply::Granted(grant) = reply {
                    self.span.record("token", grant.token.0);
                }
            }
            Err(failure) => {
                self.span.record("outcome", failure.code().as_str());
            }
        }
        self.caller.deliver(outcome)
    }
}
