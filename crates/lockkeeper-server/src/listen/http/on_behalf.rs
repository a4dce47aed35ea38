//! The operations in the name of whoever asks.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::calls::Calls;
use crate::security::Who;

/// The operations of the node, for a handler: they allow what the caller may do.
pub(super) struct OnBehalf(pub(super) Calls);

impl FromRequestParts<Calls> for OnBehalf {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, calls: &Calls) -> Result<OnBehalf, Infallible> {
        // The reception has put it there; whoever came another way has shown nothing.
        let who = parts.extensions.get::<Who>().cloned().unwrap_or(Who::Nobody);
        Ok(OnBehalf(calls.on_behalf_of(who)))
    }
}
