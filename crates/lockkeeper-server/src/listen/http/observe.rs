//! An election as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, StreamExt};
use lockkeeper_api::election::GetElection;
use lockkeeper_api::election_lock;

use super::error::{self, Error};
use super::on_behalf::OnBehalf;
use super::query::Query;

/// An observer that has gone is noticed after this time at the latest.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);

/// Events named `leader`, the first at once; then, if this node can no longer know, one named `error`, and the end.
pub(super) async fn election(
    OnBehalf(api): OnBehalf,
    Query(call): Query<GetElection>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Error> {
    let lock = election_lock(&call.name)?;
    // What is wrong from the start is a plain answer.
    api.election(&lock)?;
    let events = api.observe(lock).map(|seen| {
        let event = match seen {
            Ok(seen) => Event::default().event("leader").json_data(seen),
            Err(failure) => Event::default().event("error").json_data(error::body(&failure)),
        };
        Ok(event.unwrap_or_default())
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_EVERY)))
}
