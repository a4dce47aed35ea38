//! An election as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, StreamExt};
use lockkeeper_api::election::GetElection;
use lockkeeper_api::election_lock;

use super::caller_api::CallerApi;
use super::error::{self, Error};
use super::query::Query;
use crate::limits::budget::ConnectionBudget;

/// A disconnected observer is detected after this time at the latest.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);

/// Streams events named `leader`, the first at once. If this node loses leadership, an event named `error` ends the stream.
pub(super) async fn election(
    CallerApi(api): CallerApi,
    Extension(connection): Extension<ConnectionBudget>,
    Query(call): Query<GetElection>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Error> {
    let lock = election_lock(&call.name)?;
    // An initial failure is a plain error response.
    api.election(&lock)?;
    let seat = api.budget(&connection).admit_observer()?;
    let events = api.observe(lock, seat).map(|seen| {
        let event = match seen {
            Ok(seen) => Event::default().event("leader").json_data(seen),
            Err(failure) => Event::default().event("error").json_data(error::body(&failure)),
        };
        Ok(event.unwrap_or_default())
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_EVERY)))
}
