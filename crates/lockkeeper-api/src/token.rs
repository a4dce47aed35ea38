//! Checks of tokens.

use lockkeeper_core::{Refusal, Sequencer, Token};
use serde::{Deserialize, Serialize};

use crate::request::{Answer, Call, Request, lock_name};
use crate::v1;
use crate::wire::{answers, mirror};

/// Request to check whether a token still holds its lock, by lock and token or by sequencer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckToken {
    /// The lock.
    pub lock: Option<String>,
    /// Its token.
    pub token: Option<u64>,
    /// Instead of both: the sequencer of the grant.
    pub sequencer: Option<String>,
}

/// The answer to the check of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Checked"))]
pub struct TokenCheck {
    /// Whether it holds the lock.
    pub valid: bool,
    /// The last token granted for the lock.
    pub last_token: u64,
}

mirror!(TokenCheck = v1::CheckTokenResponse { valid, last_token });

impl Call for CheckToken {
    type Answer = TokenCheck;
    const EXAMPLE: Option<(&'static str, &'static str)> =
        Some((r#"{"sequencer": "lk1:42:x:orders/4472"}"#, r#"{"valid": true, "last_token": 42}"#));

    fn into_request(self) -> Result<Request, Refusal> {
        match (self.lock, self.token, self.sequencer) {
            (Some(lock), Some(token), None) => by_name(lock, token),
            (None, None, Some(sequencer)) if sequencer.is_empty() => {
                Err(Refusal::invalid("the sequencer is empty: use the one that was returned with the grant"))
            }
            (None, None, Some(sequencer)) => by_sequencer(&sequencer),
            _ => Err(Refusal::invalid("name either lock and token, or sequencer alone")),
        }
    }
}

impl TryFrom<v1::CheckTokenRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::CheckTokenRequest) -> Result<Request, Refusal> {
        match request.sequencer.is_empty() {
            true => by_name(request.lock, request.token),
            false => by_sequencer(&request.sequencer),
        }
    }
}

fn by_name(lock: String, token: u64) -> Result<Request, Refusal> {
    Ok(Request::Token { lock: lock_name(lock)?, token: Token(token) })
}

fn by_sequencer(text: &str) -> Result<Request, Refusal> {
    let parsed = text.parse::<Sequencer>().map_err(|error| Refusal::invalid(error.to_string()))?;
    let Sequencer { lock, token, .. } = parsed;
    lockkeeper_core::limits::check_name("name of the lock", &lock)?;
    Ok(Request::Token { lock, token })
}

answers! {
    Answer::Token(check) => TokenCheck as check;
    Answer::Token(check) => v1::CheckTokenResponse as check.into();
}
