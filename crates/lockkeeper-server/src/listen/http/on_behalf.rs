//! The operations in the name of the caller.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::api::Api;
use crate::security::Who;

/// The operations of the node, for a handler: they allow what the caller may do.
pub(super) struct OnBehalf(pub(super) Api);

impl FromRequestParts<Api> for OnBehalf {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<OnBehalf, Infallible> {
        // The auth layer has put it there; a request that came another way is not authenticated.
        let who = parts.extensions.get::<Who>().cloned().unwrap_or(Who::Nobody);
        Ok(OnBehalf(api.on_behalf_of(who)))
    }
}
