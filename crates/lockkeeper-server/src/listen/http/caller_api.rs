//! The extractor for the operations on behalf of the caller.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::api::Api;
use crate::security::Principal;

/// The operations of the node on behalf of the caller of a handler.
pub(super) struct CallerApi(pub(super) Api);

impl FromRequestParts<Api> for CallerApi {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<CallerApi, Infallible> {
        // Set by the auth layer. Without it the caller is not authenticated.
        let principal = parts.extensions.get::<Principal>().cloned().unwrap_or(Principal::Anonymous);
        Ok(CallerApi(api.on_behalf_of(principal)))
    }
}
