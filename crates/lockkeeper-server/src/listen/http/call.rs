//! Calls of the API: a JSON body or a query becomes a request, and the answer becomes JSON.

use axum::Json;
use axum::response::{IntoResponse, Response};
use lockkeeper_api::{Answer, Call, WrongAnswer};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::body::Body;
use super::caller_api::CallerApi;
use super::error::Error;
use super::query::Query;
use crate::api::Api;
use crate::effects::undelivered::UndeliveredGrant;

/// Handles a call with a JSON body. If the caller disconnects while it waits, this future is dropped, and with it the caller's
/// place in the queue (see [`Api::acquire`]).
pub(super) async fn post<C>(
    CallerApi(api): CallerApi,
    Body(call): Body<C>,
) -> Result<JsonAnswer<C::Answer>, Error>
where
    C: Call + DeserializeOwned,
    C::Answer: TryFrom<Answer, Error = WrongAnswer>,
{
    carry_out(&api, call).await
}

/// Handles a call with a query.
pub(super) async fn get<C>(
    CallerApi(api): CallerApi,
    Query(call): Query<C>,
) -> Result<JsonAnswer<C::Answer>, Error>
where
    C: Call + DeserializeOwned,
    C::Answer: TryFrom<Answer, Error = WrongAnswer>,
{
    carry_out(&api, call).await
}

async fn carry_out<C>(api: &Api, call: C) -> Result<JsonAnswer<C::Answer>, Error>
where
    C: Call,
    C::Answer: TryFrom<Answer, Error = WrongAnswer>,
{
    let request = call.into_request()?;
    let (answer, undelivered) = api.call(request).await?.into_parts()?;
    Ok(JsonAnswer { answer, undelivered })
}

/// A JSON answer, together with its grant until the answer is sent: see `listen/delivery.rs`.
pub(super) struct JsonAnswer<T> {
    answer: T,
    undelivered: Option<UndeliveredGrant>,
}

impl<T: Serialize> IntoResponse for JsonAnswer<T> {
    fn into_response(self) -> Response {
        let mut response = Json(self.answer).into_response();
        if let Some(grant) = self.undelivered {
            response.extensions_mut().insert(grant);
        }
        response
    }
}
