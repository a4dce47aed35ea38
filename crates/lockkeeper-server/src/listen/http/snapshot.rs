//! Downloads the whole state, for `lockkeeper snapshot restore`.

use axum::body::Body;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

use super::caller_api::CallerApi;
use super::error::Error;

pub(super) async fn save(CallerApi(api): CallerApi) -> Result<Response, Error> {
    let backup = api.backup().await?;
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, backup.bytes.to_string()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"lockkeeper-{}.snapshot\"", backup.through)),
    ];
    Ok((headers, Body::from_stream(backup.chunks)).into_response())
}
