//! Who may do what: rules, tokens, quotas.

use axum::Json;
use lockkeeper_api::v1;
use serde::{Deserialize, Serialize};

use super::body::Body;
use super::error::Error;
use super::on_behalf::OnBehalf;

/// The identity that access control is turned on with, if nobody names another.
const FIRST_ADMINISTRATOR: &str = "admin";

#[derive(Serialize)]
pub(super) struct State {
    rules: Vec<Rule>,
    tokens: Vec<Token>,
    quotas: Vec<Quota>,
    enabled: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    identity: String,
    prefix: String,
    rights: Vec<String>,
}

#[derive(Serialize)]
struct Token {
    id: String,
    identity: String,
    age_ms: u64,
}

#[derive(Serialize)]
struct Quota {
    #[serde(flatten)]
    set: QuotaWish,
    locks_used: u64,
    waiters_used: u64,
    values_used: u64,
    sessions_used: u32,
    state_bytes_used: u64,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct QuotaWish {
    namespace: Option<String>,
    identity: Option<String>,
    locks: Option<u64>,
    waiters: Option<u64>,
    values: Option<u64>,
    requests_per_s: Option<u32>,
    sessions: Option<u32>,
    state_bytes: Option<u64>,
}

pub(super) async fn list(OnBehalf(calls): OnBehalf) -> Result<Json<State>, Error> {
    let state = calls.access()?;
    let rule =
        |rule: v1::AccessRule| Rule { identity: rule.identity, prefix: rule.prefix, rights: rule.rights };
    let token =
        |token: v1::AccessTokenInfo| Token { id: token.id, identity: token.identity, age_ms: token.age_ms };
    let quota = |quota: v1::Quota| Quota {
        set: QuotaWish {
            namespace: Some(quota.namespace).filter(|name| !name.is_empty()),
            identity: Some(quota.identity).filter(|name| !name.is_empty()),
            locks: quota.locks,
            waiters: quota.waiters,
            values: quota.values,
            requests_per_s: quota.requests_per_s,
            sessions: quota.sessions,
            state_bytes: quota.state_bytes,
        },
        locks_used: quota.locks_used,
        waiters_used: quota.waiters_used,
        values_used: quota.values_used,
        sessions_used: quota.sessions_used,
        state_bytes_used: quota.state_bytes_used,
    };
    Ok(Json(State {
        rules: state.rules.into_iter().map(rule).collect(),
        tokens: state.tokens.into_iter().map(token).collect(),
        quotas: state.quotas.into_iter().map(quota).collect(),
        enabled: state.enabled,
    }))
}

#[derive(Serialize)]
pub(super) struct Done {}

pub(super) async fn grant(OnBehalf(calls): OnBehalf, Body(asked): Body<Rule>) -> Result<Json<Done>, Error> {
    let Rule { identity, prefix, rights } = asked;
    calls.grant_access(v1::GrantAccessRequest { identity, prefix, rights }).await?;
    Ok(Json(Done {}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleName {
    identity: String,
    prefix: String,
}

pub(super) async fn revoke(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<RuleName>,
) -> Result<Json<Done>, Error> {
    calls.revoke_access(v1::RevokeAccessRequest { identity: asked.identity, prefix: asked.prefix }).await?;
    Ok(Json(Done {}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenWish {
    identity: String,
}

#[derive(Serialize)]
pub(super) struct NewToken {
    id: String,
    identity: String,
    token: String,
}

/// Who the first administrator is, if not `admin`.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Enable {
    identity: Option<String>,
}

pub(super) async fn enable(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<Enable>,
) -> Result<Json<NewToken>, Error> {
    let identity = asked.identity.as_deref().unwrap_or(FIRST_ADMINISTRATOR);
    let made = calls.enable_access(identity).await?;
    Ok(Json(NewToken { id: made.id, identity: made.identity, token: made.token }))
}

pub(super) async fn create_token(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<TokenWish>,
) -> Result<Json<NewToken>, Error> {
    let made = calls.create_token(&asked.identity).await?;
    Ok(Json(NewToken { id: made.id, identity: made.identity, token: made.token }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenName {
    id: String,
}

pub(super) async fn revoke_token(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<TokenName>,
) -> Result<Json<Done>, Error> {
    calls.revoke_token(&asked.id).await?;
    Ok(Json(Done {}))
}

pub(super) async fn quota(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<QuotaWish>,
) -> Result<Json<Done>, Error> {
    calls
        .set_quota(v1::Quota {
            namespace: asked.namespace.unwrap_or_default(),
            identity: asked.identity.unwrap_or_default(),
            locks: asked.locks,
            waiters: asked.waiters,
            values: asked.values,
            requests_per_s: asked.requests_per_s,
            sessions: asked.sessions,
            state_bytes: asked.state_bytes,
            ..v1::Quota::default()
        })
        .await?;
    Ok(Json(Done {}))
}
