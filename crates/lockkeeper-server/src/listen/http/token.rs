//! Ask whether a token still holds its lock.

use axum::Json;
use lockkeeper_api::v1;
use serde::{Deserialize, Serialize};

use super::body::Body;
use super::error::Error;
use super::on_behalf::OnBehalf;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    lock: Option<String>,
    token: Option<u64>,
    sequencer: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Checked {
    valid: bool,
    last_token: u64,
}

pub(super) async fn check(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<Check>,
) -> Result<Json<Checked>, Error> {
    let request = match (asked.lock, asked.token, asked.sequencer) {
        (Some(lock), Some(token), None) => v1::CheckTokenRequest { lock, token, ..Default::default() },
        (None, None, Some(sequencer)) if sequencer.is_empty() => {
            return Err(Error::invalid("the sequencer is empty: it is given with the grant"));
        }
        (None, None, Some(sequencer)) => v1::CheckTokenRequest { sequencer, ..Default::default() },
        _ => return Err(Error::invalid("name either lock and token, or sequencer alone")),
    };
    let checked = calls.check_token(&request)?;
    Ok(Json(Checked { valid: checked.valid, last_token: checked.last_token }))
}
