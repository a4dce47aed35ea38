//! Answers that bring a grant.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::undelivered::UndeliveredGrant;

/// JSON, with the grant beside it until the answer is sent: see `listen/delivery.rs`.
pub(super) struct WithGrant<T> {
    json: Json<T>,
    grant: UndeliveredGrant,
}

impl<T> WithGrant<T> {
    pub(super) fn new(answer: T, grant: UndeliveredGrant) -> WithGrant<T> {
        WithGrant { json: Json(answer), grant }
    }
}

impl<T: Serialize> IntoResponse for WithGrant<T> {
    fn into_response(self) -> Response {
        let mut response = self.json.into_response();
        response.extensions_mut().insert(self.grant);
        response
    }
}
