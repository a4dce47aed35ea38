//! Calls of the API: a JSON body or a query becomes a request, and the answer becomes JSON.

use axum::Json;
use axum::response::{IntoResponse, Response};
use lockkeeper_api::{Answer, Call, WrongAnswer};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::body::Body;
use super::error::Error;
use super::on_behalf::OnBehalf;
use super::query::Query;
use crate::api::Api;
use crate::undelivered::UndeliveredGrant;

/// A call with a JSON body. If the caller goes away while it waits, this future is dropped, and with it the caller's place
/// in the queue (see [`Api::acquire`]).
pub(super) async fn post<C>(
    OnBehalf(api): OnBehalf,
    Body(call): Body<C>,
) -> Result<JsonAnswer<C::Answer>, Error>
where
    C: Call + DeserializeOwned,
    C::Answer: TryFrom<Answer, Error = WrongAnswer>,
{
    carry_out(&api, call).await
}

/// A call with a query.
pub(super) async fn get<C>(
    OnBehalf(api): OnBehalf,
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

/// JSON, with the grant in it beside it until the answer is sent: see `listen/delivery.rs`.
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
