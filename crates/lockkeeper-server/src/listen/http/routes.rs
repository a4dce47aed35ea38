//! The route table: every call of the HTTP interface with its documentation. The router and the OpenAPI document are built
//! from it.

use axum::handler::Handler;
use axum::routing::MethodRouter;
use lockkeeper_api::access::{
    AccessRule, CreateToken, EnableAccess, GetAccess, RevokeAccess, RevokeToken, SetQuota,
};
use lockkeeper_api::acquire::{Acquire, AcquireAll, Cancel, ForceRelease, Release};
use lockkeeper_api::election::{Campaign, Election, GetElection, HandOver, Resign};
use lockkeeper_api::graph::GetGraph;
use lockkeeper_api::history::{GetAudit, GetHistory};
use lockkeeper_api::lock::{GetLock, ListLocks};
use lockkeeper_api::rate::TakeRate;
use lockkeeper_api::session::{CloseSession, KeepAlive, ListSessions, OpenSession};
use lockkeeper_api::status::{AddMember, GetStatus, Health, ListMembers, RemoveMember, Version};
use lockkeeper_api::token::CheckToken;
use lockkeeper_api::top::GetTop;
use lockkeeper_api::value::{DeleteValue, GetValue, PutValue};
use lockkeeper_api::{Answer, Call, Code, WrongAnswer};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{call, console, metrics, observe, openapi, snapshot, status};
use crate::api::Api;
use crate::listen::calls::Cost;

/// Generates the schema of a type.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// A call. Each path has one method.
pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) handler: MethodRouter<Api>,
    /// How expensive the call is, whatever its method.
    pub(super) cost: Cost,
    pub(super) id: &'static str,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    /// The body of a POST, the query of a GET.
    pub(super) input: Option<SchemaOf>,
    /// The media types of a successful answer.
    pub(super) kinds: &'static [&'static str],
    /// The schema of a successful answer, if it is JSON.
    pub(super) output: Option<SchemaOf>,
    /// Error codes besides those of every call of its kind.
    pub(super) codes: &'static [Code],
    /// Whether callers are authorized. Then the error codes for authorization and for invalid requests apply.
    pub(super) guarded: bool,
    /// JSON examples of the body and of the answer.
    pub(super) examples: Option<(&'static str, &'static str)>,
}

const JSON: &[&str] = &["application/json"];
const EVENTS: &[&str] = &["text/event-stream"];
const SESSION: &[Code] = &[Code::SessionLost];
const HOLDER: &[Code] = &[Code::SessionLost, Code::NotHeld];
const ACQUIRE: &[Code] = &[
    Code::Busy,
    Code::Timeout,
    Code::SessionLost,
    Code::NotHeld,
    Code::Deadlock,
    Code::Wounded,
    Code::Died,
    Code::Unsupported,
];
const WRITE: &[Code] = &[Code::StaleToken, Code::VersionMismatch];

impl Route {
    fn new<H, T>(method: &'static str, path: &'static str, cost: Cost, handler: H) -> Route
    where
        H: Handler<T, Api>,
        T: 'static,
    {
        let handler = match method {
            "post" => axum::routing::post(handler),
            _ => axum::routing::get(handler),
        };
        Route {
            method,
            path,
            handler,
            cost,
            id: "",
            tag: "",
            summary: "",
            input: None,
            kinds: JSON,
            output: None,
            codes: &[],
            guarded: true,
            examples: None,
        }
    }

    fn about(self, id: &'static str, summary: &'static str) -> Route {
        Route { id, summary, ..self }
    }

    fn query<T: JsonSchema>(self) -> Route {
        Route { input: Some(SchemaGenerator::root_schema_for::<T>), ..self }
    }

    fn answers<T: JsonSchema>(self) -> Route {
        Route { output: Some(SchemaGenerator::subschema_for::<T>), ..self }
    }

    fn kinds(self, kinds: &'static [&'static str]) -> Route {
        Route { kinds, ..self }
    }

    fn codes(self, codes: &'static [Code]) -> Route {
        Route { codes, ..self }
    }

    fn open(self) -> Route {
        Route { guarded: false, ..self }
    }
}

/// Returns the route of a call with a JSON body. Its answer is small.
fn post<C>(path: &'static str) -> Route
where
    C: Call + DeserializeOwned + JsonSchema + Send + 'static,
    C::Answer: TryFrom<Answer, Error = WrongAnswer> + Serialize + JsonSchema + Send + 'static,
{
    let route = Route::new("post", path, Cost::Small, call::post::<C>);
    let input: Option<SchemaOf> = Some(SchemaGenerator::subschema_for::<C>);
    Route { input, examples: C::EXAMPLE, ..route }.answers::<C::Answer>()
}

/// Returns the route of a call with a query.
fn get<C>(path: &'static str, cost: Cost) -> Route
where
    C: Call + DeserializeOwned + JsonSchema + Send + 'static,
    C::Answer: TryFrom<Answer, Error = WrongAnswer> + Serialize + JsonSchema + Send + 'static,
{
    Route::new("get", path, cost, call::get::<C>).query::<C>().answers::<C::Answer>()
}

fn tagged(tag: &'static str, routes: impl IntoIterator<Item = Route>) -> impl Iterator<Item = Route> {
    routes.into_iter().map(move |route| Route { tag, ..route })
}

/// Returns every call of the API, in the order of the contract.
pub(super) fn routes() -> Vec<Route> {
    let mut all = Vec::new();
    all.extend(tagged("session", sessions()));
    all.extend(tagged("lock", locks()));
    all.extend(tagged(
        "token",
        [post::<CheckToken>("/v1/token/check")
            .about("checkToken", "Check whether a token still holds its lock")],
    ));
    all.extend(tagged("value", values()));
    all.extend(tagged("election", elections()));
    all.extend(tagged(
        "rate",
        [post::<TakeRate>("/v1/rate/take")
            .about("takeRate", "Take permits from a shared rate limiter, all or nothing")],
    ));
    all.extend(tagged("observe", observations()));
    all.extend(tagged("access", access()));
    all.extend(tagged("node", node()));
    all
}

fn sessions() -> [Route; 3] {
    [
        post::<OpenSession>("/v1/session/open")
            .about("openSession", "Open a session; all grants belong to a session and end with it"),
        post::<KeepAlive>("/v1/session/keepalive")
            .about("keepAlive", "Renew a session; call this every third of its time to live")
            .codes(SESSION),
        post::<CloseSession>("/v1/session/close")
            .about("closeSession", "Close a session and release all its grants")
            .codes(SESSION),
    ]
}

fn locks() -> [Route; 7] {
    [
        post::<Acquire>("/v1/lock/acquire")
            .about("acquire", "Acquire a lock, waiting in the queue for up to wait_ms")
            .codes(ACQUIRE),
        post::<AcquireAll>("/v1/lock/acquire_all")
            .about("acquireAll", "Acquire several locks, all or nothing, with one token")
            .codes(ACQUIRE),
        post::<Release>("/v1/lock/release").about("release", "Release a lock").codes(HOLDER),
        post::<Cancel>("/v1/lock/cancel")
            .about(
                "cancel",
                "Cancel the acquire with this request id: leave the queue, or release what was granted",
            )
            .codes(SESSION),
        post::<ForceRelease>("/v1/lock/force_release").about(
            "forceRelease",
            "Release a lock by force; its last token rises, so every gate refuses the former holder",
        ),
        get::<GetLock>("/v1/lock", Cost::GrowsWithTable)
            .about("getLock", "Get the holders and waiters of a lock"),
        get::<ListLocks>("/v1/locks", Cost::GrowsWithTable)
            .about("listLocks", "List the locks in use, in order of name"),
    ]
}

fn values() -> [Route; 3] {
    [
        post::<PutValue>("/v1/value/put")
            .about("putValue", "Write a value, optionally fenced by a token and conditional on a version")
            .codes(WRITE),
        post::<DeleteValue>("/v1/value/delete").about("deleteValue", "Delete a value").codes(WRITE),
        get::<GetValue>("/v1/value", Cost::LargeAnswer)
            .about("getValue", "Read a value; version 0 if there is none"),
    ]
}

fn elections() -> [Route; 5] {
    [
        post::<Campaign>("/v1/election/campaign")
            .about("campaign", "Campaign in an election and wait to lead, like an acquire waits for its lock")
            .codes(ACQUIRE),
        post::<Resign>("/v1/election/resign")
            .about("resign", "Resign; the next candidate leads")
            .codes(HOLDER),
        post::<HandOver>("/v1/election/handover")
            .about("handOver", "Hand leadership over to a candidate, wherever it is in the queue")
            .codes(HOLDER),
        get::<GetElection>("/v1/election", Cost::LargeAnswer).about("getElection", "Get the current leader"),
        Route::new("get", "/v1/election/observe", Cost::LargeAnswer, observe::election)
            .about(
                "observeElection",
                "Stream the current leader and every change as server-sent events named leader",
            )
            .query::<GetElection>()
            .answers::<Election>()
            .kinds(EVENTS),
    ]
}

fn observations() -> [Route; 5] {
    [
        get::<GetHistory>("/v1/history", Cost::GrowsWithTable).about(
            "history",
            "Get the last events of a lock, newest first; they survive restarts and fail-overs",
        ),
        get::<GetAudit>("/v1/audit", Cost::GrowsWithTable)
            .about("audit", "Get the acts of operators and the leaders of the cell, newest first"),
        get::<GetTop>("/v1/top", Cost::GrowsWithTable).about(
            "top",
            "Get the most contended and the longest held locks, and statistics of the last hour",
        ),
        get::<GetGraph>("/v1/graph", Cost::GrowsWithTable)
            .about("waitGraph", "Get who waits for whom; cycles and the longest chain are marked"),
        get::<ListSessions>("/v1/sessions", Cost::GrowsWithTable)
            .about("listSessions", "List sessions and their remaining time"),
    ]
}

fn access() -> [Route; 7] {
    [
        get::<GetAccess>("/v1/access", Cost::GrowsWithTable).about(
            "access",
            "Get all rules, tokens (without their secrets) and quotas; for administrators",
        ),
        post::<EnableAccess>("/v1/access/enable")
            .about(
                "enableAccess",
                "Turn access control on and create the token of the first administrator; its secret is only in this \
                 answer",
            ),
        post::<AccessRule>("/v1/access/grant")
            .about(
                "grantAccess",
                "Grant an identity rights to all names with a prefix; replaces its former rule for that prefix",
            ),
        post::<RevokeAccess>("/v1/access/revoke")
            .about("revokeAccess", "Revoke a rule"),
        post::<CreateToken>("/v1/access/token/create")
            .about("createAccessToken", "Create an access token; its secret is only in this answer"),
        post::<RevokeToken>("/v1/access/token/revoke")
            .about("revokeAccessToken", "Revoke an access token, effective at once"),
        post::<SetQuota>("/v1/access/quota")
            .about(
                "setQuota",
                "Set the quota of a namespace, an identity or the whole cell; absent fields are unlimited",
            ),
    ]
}

fn node() -> Vec<Route> {
    const UNAVAILABLE: &[Code] = &[Code::Unavailable];
    let health = |path| {
        Route::new("get", path, Cost::Small, status::ready)
            .answers::<Health>()
            .query::<Verbose>()
            .codes(UNAVAILABLE)
            .open()
    };
    vec![
        get::<GetStatus>("/v1/status", Cost::LargeAnswer).about("status", "Get the state of the node and its cell"),
        get::<ListMembers>("/v1/members", Cost::LargeAnswer).about("listMembers", "List the members of the cell"),
        post::<AddMember>("/v1/member/add")
            .about(
                "addMember",
                "Add a node that runs with an empty folder: it catches up and then votes. The answer comes when it votes",
            ),
        post::<RemoveMember>("/v1/member/remove")
            .about(
                "removeMember",
                "Remove a member permanently. A leader that is removed hands leadership over first and names the new one",
            ),
        Route::new("get", "/v1/snapshot", Cost::LargeAnswer, snapshot::save)
            .about("saveSnapshot", "Download a consistent copy of the whole state, for `lockkeeper snapshot restore`")
            .kinds(&["application/octet-stream"]),
        Route::new("get", "/livez", Cost::Small, status::alive)
            .about("livez", "Liveness: the process runs and answers")
            .answers::<Health>()
            .open(),
        health("/readyz").about("readyz", "Readiness: the node leads, or knows the leader"),
        health("/health").about("health", "The same as /readyz"),
        Route::new("get", "/version", Cost::Small, status::version)
            .about("version", "Get the version of the node")
            .answers::<Version>()
            .open(),
        Route::new("get", "/metrics", Cost::GrowsWithTable, metrics::metrics)
            .about("metrics", "Get the metrics for Prometheus; OpenMetrics if the Accept header names it")
            .kinds(&["text/plain", "application/openmetrics-text"]),
        Route::new("get", "/openapi.json", Cost::LargeAnswer, openapi::serve).about("openapi", "This document").open(),
        Route::new("get", "/v1/openapi.json", Cost::LargeAnswer, openapi::serve).about("openapiV1", "This document").open(),
        Route::new("get", "/", Cost::LargeAnswer, console::page)
            .about("console", "The web console")
            .kinds(&["text/html"])
            .open(),
        Route::new("get", "/console/events", Cost::LargeAnswer, console::events)
            .about(
                "consoleEvents",
                "Stream a view of the console as server-sent events, as this node has applied it; internal to the console, \
                 may change",
            )
            .query::<console::ViewQuery>()
            .kinds(EVENTS),
        Route::new("get", "/console/{file}", Cost::LargeAnswer, console::file)
            .about("consoleFile", "A file of the console")
            .kinds(&["text/css", "text/javascript", "image/svg+xml"])
            .open(),
    ]
}

/// The query of a readiness probe.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used: probes are answered whatever their query")]
struct Verbose {
    /// Include the values that the decision is based on.
    #[serde(default)]
    verbose: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::request_filter::Protocol;

    /// The cost of a call is looked up by its path. A template has no path of its own, so its cost must be that of unknown paths.
    #[test]
    fn every_route_has_the_cost_of_the_table() {
        for Route { method, path, cost, .. } in routes() {
            let example = path.replace("{file}", "app.js");
            assert_eq!(Cost::of(Protocol::Http, &example), cost, "{path}");
            // A new read must not be small by mistake.
            let is_probe = ["/livez", "/readyz", "/health", "/version"].contains(&path);
            assert_eq!(cost == Cost::Small, method == "post" || is_probe, "{path}");
        }
    }
}
