//! The span of an acquire: how long it took, and who held the lock when a wait began.
//!
//! Without a subscriber for the span, the call goes straight to the engine, without an allocation.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::field::{Empty, display};
use tracing::{Instrument, Span};

use crate::engines::{AcquireRequest, Engine};
use crate::error::Error;
use crate::grant::Grant;

/// An acquire that takes longer than this is waiting: only then is the holder looked up.
const HOLDER_LOOKUP_AFTER: Duration = Duration::from_millis(20);

/// Acquires, within a span if it is enabled. As cancel-safe as the engine.
pub(crate) async fn acquire(engine: &dyn Engine, request: Arc<AcquireRequest>) -> Result<Arc<Grant>, Error> {
    let span = tracing::info_span!(
        target: "lockkeeper::trace",
        "acquire",
        engine = engine.name(),
        lock = %request.locks.as_slice().first().map(|name| name.as_str()).unwrap_or_default(),
        locks = request.locks.as_slice().len(),
        session = Empty,
        token = Empty,
        waited_ms = Empty,
        holder = Empty,
        outcome = Empty,
    );
    if span.is_disabled() {
        return engine.acquire(request).await;
    }
    // Boxed, so that callers without spans do not carry the larger future.
    Box::pin(traced(engine, request, span.clone()).instrument(span)).await
}

async fn traced(engine: &dyn Engine, request: Arc<AcquireRequest>, span: Span) -> Result<Arc<Grant>, Error> {
    let began = Instant::now();
    let lock = request.locks.as_slice().first().cloned().unwrap_or_default();
    let mut acquire = pin!(engine.acquire(request));
    let holder_lookup = async {
        tokio::time::sleep(HOLDER_LOOKUP_AFTER).await;
        if let Ok(state) = engine.who(&lock).await
            && let Some(holder) = state.holders.first()
        {
            span.record("holder", display(format_args!("{} (token {})", holder.owner, holder.token)));
        }
        std::future::pending::<Infallible>().await
    };
    let outcome = tokio::select! {
        biased;
        outcome = &mut acquire => outcome,
        never = holder_lookup => match never {},
    };
    span.record("waited_ms", began.elapsed().as_millis() as u64);
    match &outcome {
        Ok(grant) => {
            span.record("outcome", "granted");
            if let Some(token) = grant.token {
                span.record("token", token.0);
            }
            if let Some(session) = &grant.session {
                // Only the first digits: the whole ID is a secret.
                span.record("session", session.get(..8).unwrap_or_default());
            }
        }
        Err(error) => {
            span.record("outcome", error.code());
        }
    }
    outcome
}
