//! HTTP/JSON.
/// The routes.
pub fn router(calls: crate::calls::Calls) -> axum::Router {
    let _ = calls;
    axum::Router::new()
}
