//! Liveness, readiness and version of the node.

use axum::Json;
use axum::http::{StatusCode, Uri};
use lockkeeper_api::status::{Health, HealthChecks, Version};

use super::caller_api::CallerApi;
use super::error::Error;
use crate::failure::Failure;

/// Answers the liveness probe: the process runs. It does not check whether the node can serve, because a restart would not
/// help.
pub(super) async fn alive() -> Json<Health> {
    Json(Health { status: "ok", checks: None })
}

/// Answers the readiness probe: whether the node can serve.
pub(super) async fn ready(CallerApi(api): CallerApi, uri: Uri) -> Result<Json<Health>, Error> {
    let role = api.role().map_err(|failure| {
        let why = Failure::Unavailable(format!("not ready: {failure}"));
        Error::from(why).with_status(StatusCode::SERVICE_UNAVAILABLE)
    })?;
    let verbose = uri.query().is_some_and(|query| query.split('&').any(|word| word.starts_with("verbose")));
    let checks = verbose.then(|| {
        let status = api.status();
        HealthChecks {
            role,
            leader: status.leader,
            term: status.term,
            applied_index: status.applied_index,
            last_log_index: status.last_log_index,
        }
    });
    Ok(Json(Health { status: "ok", checks }))
}

pub(super) async fn version() -> Json<Version> {
    Json(Version { name: "lockkeeper", version: env!("CARGO_PKG_VERSION"), api: "v1" })
}
