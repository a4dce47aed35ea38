//! Bodies and queries of all calls, for `crate::fuzz`.

use axum::http::Uri;
use lockkeeper_api::access::{
    AccessRule, CreateToken, EnableAccess, GetAccess, RevokeAccess, RevokeToken, SetQuota,
};
use lockkeeper_api::acquire::{Acquire, AcquireAll, Cancel, ForceRelease, Release};
use lockkeeper_api::election::{Campaign, GetElection, HandOver, Resign};
use lockkeeper_api::graph::GetGraph;
use lockkeeper_api::history::{GetAudit, GetHistory};
use lockkeeper_api::lock::{GetLock, ListLocks};
use lockkeeper_api::rate::TakeRate;
use lockkeeper_api::session::{CloseSession, KeepAlive, ListSessions, OpenSession};
use lockkeeper_api::status::{AddMember, GetStatus, ListMembers, RemoveMember};
use lockkeeper_api::token::CheckToken;
use lockkeeper_api::top::GetTop;
use lockkeeper_api::value::{DeleteValue, GetValue, PutValue};
use lockkeeper_api::{Call, Request};
use lockkeeper_core::limits;
use serde::de::DeserializeOwned;

use super::{body, query};

/// Decodes one kind of call.
type Decoder = fn(&[u8]) -> Option<Request>;

/// The decoders of these types, with their names.
macro_rules! decoders {
    ($decode:ident: $($call:ident,)*) => {
        &[$((stringify!($call), $decode::<$call>),)*]
    };
}

/// Calls with a JSON body.
const BODIES: &[(&str, Decoder)] = decoders![from_body:
    OpenSession, KeepAlive, CloseSession, Acquire, AcquireAll, Release, Cancel, ForceRelease, CheckToken, PutValue,
    DeleteValue, Campaign, Resign, HandOver, TakeRate, EnableAccess, AccessRule, RevokeAccess, CreateToken, RevokeToken,
    SetQuota, AddMember, RemoveMember,
];

/// Calls with a query.
const QUERIES: &[(&str, Decoder)] = decoders![from_query:
    ListSessions, GetLock, ListLocks, GetHistory, GetAudit, GetTop, GetGraph, GetValue, GetElection, GetAccess, GetStatus,
    ListMembers,
];

fn from_body<C: Call + DeserializeOwned>(data: &[u8]) -> Option<Request> {
    body::parse::<C>(data, data.len().is_multiple_of(2)).ok()?.into_request().ok()
}

fn from_query<C: Call + DeserializeOwned>(data: &[u8]) -> Option<Request> {
    let uri: Uri = format!("/?{}", std::str::from_utf8(data).ok()?).parse().ok()?;
    query::parse::<C>(&uri).ok()?.into_request().ok()
}

/// Decodes the bytes as every call.
pub(crate) fn fuzz(data: &[u8]) {
    for (_, decode) in BODIES.iter().chain(QUERIES) {
        match decode(data) {
            // The check in front of the log accepts it, or names what is too large.
            Some(Request::Command(command)) => drop(limits::check_sizes(&command)),
            request => drop(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use schemars::SchemaGenerator;

    use super::*;
    use crate::listen::http::routes::routes;

    /// The name of the type in a schema or in a reference to it.
    fn type_name(schema: &serde_json::Value) -> Option<String> {
        let reference = schema["$ref"].as_str().and_then(|text| text.rsplit('/').next());
        reference.or_else(|| schema["title"].as_str()).map(str::to_owned)
    }

    /// The corpus has at least one valid input for each call.
    #[test]
    fn every_call_has_an_example() {
        for (name, decode) in BODIES.iter().chain(QUERIES) {
            let is_decoded = crate::fuzz::texts::HTTP.iter().any(|text| decode(text.as_bytes()).is_some());
            assert!(is_decoded, "no example is a valid {name}");
        }
    }

    #[test]
    fn every_call_is_fuzzed() {
        for (method, fuzzed) in [("post", BODIES), ("get", QUERIES)] {
            let fuzzed: BTreeSet<String> = fuzzed.iter().map(|(name, _)| (*name).to_owned()).collect();
            let mut missing = BTreeSet::new();
            for route in routes().iter().filter(|route| route.method == method) {
                let Some(input) = route.input else { continue };
                let schema = serde_json::to_value(input(&mut SchemaGenerator::default())).unwrap();
                let name = type_name(&schema).unwrap_or_else(|| panic!("{}: {schema}", route.path));
                // Handlers of their own, without a `Call`.
                if !["Verbose", "ViewQuery", "ObserveElection"].contains(&name.as_str())
                    && !fuzzed.contains(&name)
                {
                    missing.insert(name);
                }
            }
            assert!(missing.is_empty(), "{method}: {missing:?} is not among {fuzzed:?}");
        }
    }
}
