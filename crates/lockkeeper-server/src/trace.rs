//! Spans of what a node does, for those who collect them: `http`, the request in it, its wait, and the log entry that
//! carried it.
//!
//! They are of level debug and have a target of their own, so they cost nothing unless a subscriber asks for exactly
//! them: one look at a number, nothing allocated. A wait names who held the lock when it began.

use std::sync::OnceLock;
use std::time::Instant;

use lockkeeper_core::history::ShortSession;
use lockkeeper_core::{Acquire, CellTime, Command, LockTable};
use tracing::Span;
use tracing::field::{Empty, display};

use crate::callers::Caller;
use crate::failure::Outcome;

/// The target of all spans, of the library's too.
pub const TARGET: &str = "lockkeeper::trace";

/// Makes a span the child of one in another process, which is named by a `traceparent` header.
pub type Adopt = fn(&Span, &str);

static ADOPT: OnceLock<Adopt> = OnceLock::new();

/// Whoever collects spans knows how to join those of other processes. The first one is asked.
pub fn join_others_by(adopt: Adopt) {
    let _ = ADOPT.set(adopt);
}

/// A request that somebody follows: its span ends with its answer.
#[derive(Debug)]
pub struct Traced {
    pub(crate) caller: Caller,
    span: Span,
    wait: Option<(Span, Instant)>,
}

/// Gives the request a span, if anybody wants one.
pub fn follow(command: &Command, caller: Caller) -> Caller {
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
        false => Caller::Traced(Box::new(Traced { caller, span, wait: None })),
    }
}

/// The log entry that carries these requests. Ends when it is dropped.
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

/// A call over HTTP, as part of the trace that its caller names.
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
        && let (Some(adopt), Some(traceparent)) = (ADOPT.get(), traceparent)
    {
        adopt(&span, traceparent);
    }
    span
}

impl Traced {
    /// The request was queued. Whoever holds the lock now is why.
    pub(crate) fn waits(&mut self, table: &LockTable, now: CellTime, request: &Acquire) {
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

    /// The answer: all spans end.
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
