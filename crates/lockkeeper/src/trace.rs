//! The span of an acquire: how long it took, and who held the lock when a wait began.
//!
//! Without a subscriber that wants it nothing is done and nothing allocated: the call goes straight to the engine.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::field::{Empty, display};
use tracing::{Instrument, Span};

use crate::engines::{AcquireRequest, Engine};
use crate::error::Error;
use crate::grant::Grant;

/// What is not granted by then waits: then it is worth a question who holds it.
const LOOK_AFTER: Duration = Duration::from_millis(20);

/// Acquires, within a span if anybody wants one. Cancel-safe as the engine is.
pub(crate) async fn acquire(engine: &dyn Engine, ask: Arc<AcquireRequest>) -> Result<Arc<Grant>, Error> {
    let span = tracing::info_span!(
        target: "lockkeeper::trace",
        "acquire",
        engine = engine.name(),
        lock = %ask.locks.as_slice().first().map(|name| name.as_str()).unwrap_or_default(),
        locks = ask.locks.as_slice().len(),
        session = Empty,
        token = Empty,
        waited_ms = Empty,
        holder = Empty,
        outcome = Empty,
    );
    if span.is_disabled() {
        return engine.acquire(ask).await;
    }
    // In a box: whoever has no spans should not carry room for them in every future.
    Box::pin(traced(engine, ask, span.clone()).instrument(span)).await
}

async fn traced(engine: &dyn Engine, ask: Arc<AcquireRequest>, span: Span) -> Result<Arc<Grant>, Error> {
    let began = Instant::now();
    let lock = ask.locks.as_slice().first().cloned().unwrap_or_default();
    let mut acquire = pin!(engine.acquire(ask));
    let look = async {
        tokio::time::sleep(LOOK_AFTER).await;
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
        never = look => match never {},
    };
    span.record("waited_ms", began.elapsed().as_millis() as u64);
    match &outcome {
        Ok(grant) => {
            span.record("outcome", "granted");
            if let Some(token) = grant.token {
                span.record("token", token.0);
            }
            if let Some(session) = &grant.session {
                // Its first digits: whoever knows all of them can speak for it.
                span.record("session", session.get(..8).unwrap_or_default());
            }
        }
        Err(error) => {
            span.record("outcome", error.code());
        }
    }
    outcome
}
