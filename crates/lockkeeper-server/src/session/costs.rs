//! Classifies operations that can take long and therefore wait for their turn (`crate::limits::turns`).

use lockkeeper_api::v1::operation::Kind;
use lockkeeper_api::{session_id, v1};

use crate::api::Api;

/// Listing more grants than this counts as a long read.
const FEW_GRANTS: u32 = 1_000;

/// Whether the cost of an operation grows with the table. Writes do not count: their cost is bounded when they are applied.
/// Renewals, and what is needed for them, do not count either.
pub(super) fn grows_with_table(api: &Api, operation: &v1::Operation) -> bool {
    match &operation.kind {
        Some(
            Kind::GetLock(_)
            | Kind::ListLocks(_)
            | Kind::GetHistory(_)
            | Kind::GetAudit(_)
            | Kind::GetTop(_)
            | Kind::GetWaitGraph(_),
        ) => true,
        Some(Kind::Attach(request)) => has_many_grants(api, request),
        _ => false,
    }
}

/// Whether the answer to an attach is long.
pub(super) fn has_many_grants(api: &Api, request: &v1::AttachRequest) -> bool {
    let Ok(session) = session_id(&request.session) else { return false };
    let table = api.shared().table();
    table.session(session).is_some_and(|session| session.grants() > FEW_GRANTS)
}
